//! A minimal NBD client: fixed newstyle, `GO`, simple replies, requests in flight at the caller's
//! discretion. It checks what the protocol lets it check and knows nothing of longhaul.

use crate::client::{Command, PATIENCE, Reply, Wire};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const CLIENT_FLAGS: u32 = 1 | 2; // fixed newstyle, no zeroes
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn set_timeout(&self, limit: Option<Duration>) -> Result<()> {
        match self {
            Stream::Unix(s) => s.set_read_timeout(limit).and_then(|()| s.set_write_timeout(limit)),
            Stream::Tcp(s) => s.set_read_timeout(limit).and_then(|()| s.set_write_timeout(limit)),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(buffer),
            Stream::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write(buffer),
            Stream::Tcp(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A connection in transmission.
pub struct Nbd {
    stream: Stream,
    size: u64,
    next: u64,
    /// Bytes that each request without a reply will bring.
    pending: BTreeMap<u64, usize>,
}

impl Nbd {
    /// Opens an export at `unix:PATH` or `ADDR:PORT`.
    ///
    /// # Errors
    /// The system's error; [`ErrorKind::PermissionDenied`] with the server's text if it refuses.
    pub fn connect(address: &str, export: &str) -> Result<Nbd> {
        let stream = match address.strip_prefix("unix:") {
            Some(path) => Stream::Unix(UnixStream::connect(path)?),
            None => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
        };
        stream.set_timeout(Some(PATIENCE))?;
        let mut client = Nbd { stream, size: 0, next: 1, pending: BTreeMap::new() };
        client.negotiate(export)?;
        Ok(client)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.bytes()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.bytes()?))
    }

    fn negotiate(&mut self, export: &str) -> Result<()> {
        let invalid = |what: &str| Error::new(ErrorKind::InvalidData, what.to_owned());
        if &self.bytes::<8>()? != b"NBDMAGIC" || self.u64()? != OPTION_MAGIC {
            return Err(invalid("not a newstyle NBD server"));
        }
        if self.u16()? & 3 != 3 {
            return Err(invalid("the server does not offer fixed newstyle and no-zeroes"));
        }
        let mut go = CLIENT_FLAGS.to_be_bytes().to_vec();
        go.extend(OPTION_MAGIC.to_be_bytes());
        go.extend(7u32.to_be_bytes());
        go.extend((4 + export.len() as u32 + 2).to_be_bytes());
        go.extend((export.len() as u32).to_be_bytes());
        go.extend(export.as_bytes());
        go.extend(0u16.to_be_bytes());
        self.stream.write_all(&go)?;
        loop {
            if self.u64()? != OPTION_REPLY_MAGIC || self.u32()? != 7 {
                return Err(invalid("not a reply to GO"));
            }
            let (kind, length) = (self.u32()?, self.u32()? as usize);
            if length > 1 << 16 {
                return Err(invalid("an option reply of absurd length"));
            }
            let mut data = vec![0; length];
            self.stream.read_exact(&mut data)?;
            match kind {
                1 => return Ok(()),
                // INFO_EXPORT: u16 type, u64 size, u16 flags
                3 if data.len() == 12 && data[..2] == [0, 0] => {
                    self.size = u64::from_be_bytes(data[2..10].try_into().expect("8 bytes"));
                }
                3 => {}
                kind => {
                    let text = String::from_utf8_lossy(&data).into_owned();
                    let text = format!("export `{export}` refused ({kind:#x}): {text}");
                    return Err(Error::new(ErrorKind::PermissionDenied, text));
                }
            }
        }
    }
}

impl Wire for Nbd {
    fn size(&self) -> u64 {
        self.size
    }

    fn in_flight(&self) -> usize {
        self.pending.len()
    }

    fn takes_fua(&self, _: Command) -> bool {
        true
    }

    fn send(
        &mut self,
        command: Command,
        fua: bool,
        at: u64,
        length: u32,
        data: &[u8],
    ) -> Result<u64> {
        let cookie = self.next;
        self.next += 1;
        let code: u16 = match command {
            Command::Read => 0,
            Command::Write => 1,
            Command::Flush => 3,
            Command::Discard => 4,
            Command::Zero => 6,
        };
        let mut request = Vec::with_capacity(28 + data.len());
        request.extend(REQUEST_MAGIC.to_be_bytes());
        request.extend(u16::from(fua).to_be_bytes());
        request.extend(code.to_be_bytes());
        request.extend(cookie.to_be_bytes());
        request.extend(at.to_be_bytes());
        request.extend(length.to_be_bytes());
        request.extend(data);
        let reads = if command == Command::Read { length as usize } else { 0 };
        self.pending.insert(cookie, reads);
        self.stream.write_all(&request)?;
        Ok(cookie)
    }

    fn receive(&mut self) -> Result<Reply> {
        let magic = self.u32()?;
        if magic != REPLY_MAGIC {
            let text = format!("reply magic is {magic:#x}");
            return Err(Error::new(ErrorKind::InvalidData, text));
        }
        let (error, cookie) = (self.u32()?, self.u64()?);
        let Some(length) = self.pending.remove(&cookie) else {
            let text = format!("a reply to no request: {cookie}");
            return Err(Error::new(ErrorKind::InvalidData, text));
        };
        if error != 0 {
            return Ok(Reply { cookie, result: Err(error) });
        }
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data)?;
        Ok(Reply { cookie, result: Ok(data) })
    }

    fn disconnect(mut self: Box<Self>) {
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        request.extend(0u16.to_be_bytes());
        request.extend(2u16.to_be_bytes());
        request.extend([0; 20]);
        let _ = self.stream.write_all(&request);
    }
}
