//! The smallest NBD client that can show something: blocking, one request at a time.
//!
//! Fixed newstyle negotiation, `EXPORT_NAME`, simple replies (NBD proto.md). It trusts its server.

use anyhow::{Context as _, Result, bail};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Longest wait for the server.
const LIMIT: Duration = Duration::from_secs(60);

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A connection to an export.
pub struct Client {
    stream: Box<dyn Stream>,
    cookie: u64,
}

impl Client {
    /// Opens an export at `ADDR:PORT` or `unix:PATH`.
    ///
    /// # Errors
    /// If there is no NBD server, or it refuses.
    pub fn open(address: &str, export: &str) -> Result<Client> {
        let mut stream: Box<dyn Stream> = if let Some(path) = address.strip_prefix("unix:") {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(LIMIT))?;
            Box::new(stream)
        } else {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(LIMIT))?;
            Box::new(stream)
        };
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
            bail!("{address} is not an NBD server");
        }
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT");
        hello.extend(1u32.to_be_bytes());
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        stream.write_all(&hello)?;
        let mut answer = [0; 10];
        stream
            .read_exact(&mut answer)
            .with_context(|| format!("the server at {address} refused the export {export}"))?;
        Ok(Client { stream, cookie: 0 })
    }

    /// Writes `data` at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.request(1, offset, data.len() as u32, data, &mut [])
    }

    /// Reads at `offset`.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<()> {
        self.request(0, offset, data.len() as u32, &[], data)
    }

    /// Makes everything written durable.
    pub fn flush(&mut self) -> Result<()> {
        self.request(3, 0, 0, &[], &mut [])
    }

    fn request(
        &mut self,
        kind: u16,
        offset: u64,
        length: u32,
        payload: &[u8],
        answer: &mut [u8],
    ) -> Result<()> {
        self.cookie += 1;
        let mut request = Vec::with_capacity(28 + payload.len());
        request.extend(0x2560_9513u32.to_be_bytes());
        request.extend([0, 0]);
        request.extend(kind.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(length.to_be_bytes());
        request.extend(payload);
        self.stream.write_all(&request)?;
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        let [0x67, 0x44, 0x66, 0x98, a, b, c, d, ..] = head else {
            bail!("the server broke the NBD protocol");
        };
        match u32::from_be_bytes([a, b, c, d]) {
            0 => Ok(self.stream.read_exact(answer)?),
            error => bail!("the server answered with error {error}"),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut farewell = 0x2560_9513u32.to_be_bytes().to_vec();
        farewell.extend([0, 0, 0, 2]);
        farewell.extend([0; 20]);
        // The server is as content with a closed socket.
        let _ = self.stream.write_all(&farewell);
    }
}
