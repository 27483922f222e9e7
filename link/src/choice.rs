//! The choice of transports on the command line.

/// The transports that a host may use.
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
