//! What the command line says of transports.

/// Which transports a host may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Transport {
    /// QUIC, and TCP where QUIC does not get through.
    #[default]
    Auto,
    /// QUIC over UDP.
    Quic,
    /// TLS over TCP.
    Tcp,
}
