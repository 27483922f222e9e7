//! A client's byte stream: TCP or unix socket, plain or inside TLS, read and written without
//! waiting.
//!
//! Promises: nothing is ever written twice or out of order; memory is bounded by one read buffer
//! and [`TLS_BUFFER_BYTES`] each way. It knows no protocol of clients.

use bytes::{Buf as _, Bytes, BytesMut};
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};
use tokio::net::{TcpStream, UnixStream, tcp, unix};

/// Plain and encrypted bytes that TLS may hold for writing.
const TLS_BUFFER_BYTES: usize = 256 << 10;

/// Pieces given to one write call.
const SLICES: usize = 64;

/// The reading half of a socket.
pub enum Reader {
    /// Of a TCP socket.
    Tcp(tcp::OwnedReadHalf),
    /// Of a unix socket.
    Unix(unix::OwnedReadHalf),
}

/// The writing half of a socket, or what is left of it.
pub enum Writer {
    /// Of a TCP socket.
    Tcp(tcp::OwnedWriteHalf),
    /// Of a unix socket.
    Unix(unix::OwnedWriteHalf),
    /// Closed.
    Closed,
}

/// Splits a TCP socket.
pub fn tcp(stream: TcpStream) -> (Reader, Writer) {
    let (reader, writer) = stream.into_split();
    (Reader::Tcp(reader), Writer::Tcp(writer))
}

/// Splits a unix socket.
pub fn unix(stream: UnixStream) -> (Reader, Writer) {
    let (reader, writer) = stream.into_split();
    (Reader::Unix(reader), Writer::Unix(writer))
}

impl AsyncRead for Reader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Reader::Tcp(half) => Pin::new(half).poll_read(cx, buffer),
            Reader::Unix(half) => Pin::new(half).poll_read(cx, buffer),
        }
    }
}

impl Reader {
    /// Reads what there is into `buffer`, which has room. 0 at the end of the stream.
    pub fn poll(&mut self, cx: &mut Context<'_>, buffer: &mut BytesMut) -> Poll<io::Result<usize>> {
        // The future holds nothing between polls, so a new one each time is as good as one kept.
        let read = std::pin::pin!(self.read_buf(buffer));
        read.poll(cx)
    }
}

impl Writer {
    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, slices) {
            (Writer::Tcp(half), [one]) => half.try_write(one),
            (Writer::Unix(half), [one]) => half.try_write(one),
            (Writer::Tcp(half), _) => half.try_write_vectored(slices),
            (Writer::Unix(half), _) => half.try_write_vectored(slices),
            (Writer::Closed, _) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Whether it is worth trying to write again.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Writer::Tcp(half) => half.as_ref().poll_write_ready(cx),
            Writer::Unix(half) => half.as_ref().poll_write_ready(cx),
            Writer::Closed => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }
}

/// The outcome of [`Outbound::write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Everything.
    All,
    /// The socket takes no more for now.
    Blocked,
}

/// The writing side of a stream with what it has yet to write.
pub struct Outbound {
    writer: Writer,
    tls: Option<Box<rustls::ServerConnection>>,
    queue: VecDeque<Bytes>,
}

impl Outbound {
    /// The writing side of a plain stream.
    pub fn new(writer: Writer) -> Outbound {
        Outbound { writer, tls: None, queue: VecDeque::new() }
    }

    /// Writes all that `next` gives, as far as the socket takes it.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn write(&mut self, mut next: impl FnMut() -> Option<Bytes>) -> io::Result<Written> {
        loop {
            while self.queue.len() < SLICES
                && let Some(piece) = next()
            {
                self.queue.push_back(piece);
            }
            let written = match &mut self.tls {
                None if self.queue.is_empty() => return Ok(Written::All),
                None => self.write_plain(),
                Some(tls) => {
                    while let Some(piece) = self.queue.front_mut() {
                        let taken = tls.writer().write(piece)?;
                        piece.advance(taken);
                        if !piece.is_empty() {
                            break;
                        }
                        self.queue.pop_front();
                    }
                    if !tls.wants_write() {
                        return Ok(Written::All);
                    }
                    tls.write_tls(&mut Encrypted(&self.writer)).map(|_| ())
                }
            };
            match written {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Written::Blocked);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn write_plain(&mut self) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.queue) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        let mut written = self.writer.try_write(&slices[..count])?;
        while let Some(piece) = self.queue.front_mut() {
            if written < piece.len() {
                piece.advance(written);
                break;
            }
            written -= piece.len();
            self.queue.pop_front();
        }
        Ok(())
    }

    /// From now on all bytes are inside TLS.
    ///
    /// # Errors
    /// If the configuration is not usable.
    pub fn start_tls(&mut self, config: Arc<rustls::ServerConfig>) -> Result<(), rustls::Error> {
        let mut tls = rustls::ServerConnection::new(config)?;
        tls.set_buffer_limit(Some(TLS_BUFFER_BYTES));
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    /// Whether bytes are inside TLS.
    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The certificate that the other side has shown inside TLS, verified, if it has.
    pub fn client_certificate(&self) -> Option<&[u8]> {
        let chain = self.tls.as_ref()?.peer_certificates()?;
        chain.first().map(AsRef::as_ref)
    }

    /// Whether the TLS handshake is under way.
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Moves what TLS makes of `raw` into `plain`, while that holds less than `most` bytes.
    ///
    /// # Errors
    /// If the client breaks TLS or its certificate is not accepted; an alert is left to be written.
    pub fn decrypt(
        &mut self,
        raw: &mut BytesMut,
        plain: &mut BytesMut,
        most: usize,
    ) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        loop {
            let mut chunk = [0; 16 << 10];
            while plain.len() < most {
                match tls.reader().read(&mut chunk) {
                    Ok(0) => return Ok(()),
                    Ok(read) => plain.extend_from_slice(&chunk[..read]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            if raw.is_empty() || plain.len() >= most {
                return Ok(());
            }
            tls.read_tls(&mut raw.reader())?;
            tls.process_new_packets().map_err(io::Error::other)?;
        }
    }

    /// Says farewell inside TLS, if there is any: without it a client cannot tell the end of the
    /// stream from an attack that cut it.
    pub fn close_tls(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
        }
    }

    /// Gives the socket up.
    pub fn close(&mut self) {
        self.writer = Writer::Closed;
        self.queue.clear();
    }

    /// Whether it is worth trying to write again.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.writer.poll_ready(cx))?;
        Poll::Ready(Ok(()))
    }
}

/// A stream on its way to another thread.
pub struct MovedStream {
    socket: Socket,
    tls: Option<Box<rustls::ServerConnection>>,
    queue: VecDeque<Bytes>,
}

/// A socket without a runtime.
enum Socket {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl MovedStream {
    /// Takes a stream away from the runtime of this thread.
    ///
    /// # Errors
    /// If the stream is closed.
    pub fn take(reader: Reader, out: Outbound) -> io::Result<MovedStream> {
        let Outbound { writer, tls, queue } = out;
        let socket = match (reader, writer) {
            (Reader::Tcp(reader), Writer::Tcp(writer)) => {
                Socket::Tcp(reader.reunite(writer).map_err(io::Error::other)?.into_std()?)
            }
            (Reader::Unix(reader), Writer::Unix(writer)) => {
                Socket::Unix(reader.reunite(writer).map_err(io::Error::other)?.into_std()?)
            }
            _ => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        Ok(MovedStream { socket, tls, queue })
    }

    /// Gives it to the runtime of this thread.
    ///
    /// # Errors
    /// If the runtime does not take it.
    pub fn give(self) -> io::Result<(Reader, Outbound)> {
        let (reader, writer) = match self.socket {
            Socket::Tcp(socket) => tcp(TcpStream::from_std(socket)?),
            Socket::Unix(socket) => unix(UnixStream::from_std(socket)?),
        };
        Ok((reader, Outbound { writer, tls: self.tls, queue: self.queue }))
    }
}

/// Gives TLS a socket to write to.
struct Encrypted<'a>(&'a Writer);

impl io::Write for Encrypted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
