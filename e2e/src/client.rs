//! A client of a volume, whichever protocol it speaks: requests in flight at the caller's
//! discretion, and replies in any order.

use crate::nbd::Nbd;
use crate::scsi::Iscsi;
use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

/// How long a reply may take before the connection counts as dead.
pub const PATIENCE: Duration = Duration::from_secs(150);

/// How clients reach a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// NBD, over a Unix socket.
    Nbd,
    /// iSCSI, over loopback.
    Iscsi,
}

/// The content of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
    /// Discard.
    Discard,
    /// Write zeroes.
    Zero,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Reply {
    /// Whose.
    pub cookie: u64,
    /// The data of a read, or the error number.
    pub result: std::result::Result<Vec<u8>, u32>,
}

/// The duties of a protocol.
pub trait Wire: Send {
    /// Size of the volume in bytes.
    fn size(&self) -> u64;

    /// Requests without a reply.
    fn in_flight(&self) -> usize;

    /// Whether a command can ask to be durable when it ends.
    fn takes_fua(&self, command: Command) -> bool;

    /// Sends a request and returns the cookie of its reply. `data` is empty unless it is a write,
    /// then `length` is its length.
    ///
    /// # Errors
    /// If the connection is gone.
    fn send(
        &mut self,
        command: Command,
        fua: bool,
        at: u64,
        length: u32,
        data: &[u8],
    ) -> Result<u64>;

    /// Waits for the next reply, whichever request it answers.
    ///
    /// # Errors
    /// If the connection is gone, silent for [`PATIENCE`], or out of step; never
    /// [`std::io::ErrorKind::Other`].
    fn receive(&mut self) -> Result<Reply>;

    /// Has the server answer writes before they are durable, or not; with nothing in flight.
    ///
    /// # Errors
    /// If the protocol has no such thing, the server refuses, or the connection is gone.
    fn set_write_cache(&mut self, _on: bool) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "no client decides about the write cache here"))
    }

    /// Ends the session in order.
    fn disconnect(self: Box<Self>);
}

/// A connected client.
pub struct Client {
    wire: Box<dyn Wire>,
}

impl Client {
    /// Opens an export at `unix:PATH` or `ADDR:PORT` over NBD.
    ///
    /// # Errors
    /// As for [`Nbd::connect`].
    pub fn nbd(address: &str, export: &str) -> Result<Client> {
        Ok(Client { wire: Box::new(Nbd::connect(address, export)?) })
    }

    /// Logs in to a target at `ADDR:PORT` over iSCSI.
    ///
    /// # Errors
    /// As for [`Iscsi::connect`].
    pub fn iscsi(address: &str, target: &str) -> Result<Client> {
        Ok(Client { wire: Box::new(Iscsi::connect(address, target)?) })
    }

    /// Size of the volume in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.wire.size()
    }

    /// Requests without a reply.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.wire.in_flight()
    }

    /// Whether a command can ask to be durable when it ends.
    #[must_use]
    pub fn takes_fua(&self, command: Command) -> bool {
        self.wire.takes_fua(command)
    }

    /// Has the server answer writes before they are durable, or not; with nothing in flight.
    ///
    /// # Errors
    /// As for [`Wire::set_write_cache`].
    pub fn set_write_cache(&mut self, on: bool) -> Result<()> {
        self.wire.set_write_cache(on)
    }

    /// Sends a request and returns the cookie of its reply. `data` is empty unless it is a write,
    /// then `length` is its length.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn send(
        &mut self,
        command: Command,
        fua: bool,
        at: u64,
        length: u32,
        data: &[u8],
    ) -> Result<u64> {
        self.wire.send(command, fua, at, length, data)
    }

    /// Waits for the next reply, whichever request it answers.
    ///
    /// # Errors
    /// As for [`Wire::receive`].
    pub fn receive(&mut self) -> Result<Reply> {
        self.wire.receive()
    }

    /// Sends a request with nothing else in flight and waits for its reply.
    ///
    /// # Errors
    /// As for [`Client::receive`], and the server's error number as a system error.
    pub fn call(
        &mut self,
        command: Command,
        fua: bool,
        at: u64,
        length: u32,
        data: &[u8],
    ) -> Result<Vec<u8>> {
        assert_eq!(self.in_flight(), 0, "a call among requests in flight");
        self.send(command, fua, at, length, data)?;
        self.receive()?.result.map_err(|number| Error::from_raw_os_error(number.cast_signed()))
    }

    /// Writes.
    ///
    /// # Errors
    /// As for [`Client::call`].
    pub fn write(&mut self, at: u64, data: &[u8]) -> Result<()> {
        self.call(Command::Write, false, at, data.len() as u32, data).map(drop)
    }

    /// Reads.
    ///
    /// # Errors
    /// As for [`Client::call`].
    pub fn read(&mut self, at: u64, length: u32) -> Result<Vec<u8>> {
        self.call(Command::Read, false, at, length, &[])
    }

    /// Flushes.
    ///
    /// # Errors
    /// As for [`Client::call`].
    pub fn flush(&mut self) -> Result<()> {
        self.call(Command::Flush, false, 0, 0, &[]).map(drop)
    }

    /// Ends the session in order.
    pub fn disconnect(self) {
        self.wire.disconnect();
    }
}
