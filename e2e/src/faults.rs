//! An HTTP/1.1 proxy that treats requests as networks and clouds do. It has answers of its own,
//! loses answers after the request had its effect, cuts requests and answers, and is slow.
//!
//! It reads a whole request, then decides its fault, then passes it on over a connection of its
//! own. The client keeps its connections.

use std::io::{BufRead as _, BufReader, Error, ErrorKind, Read as _, Result, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longest that the server behind may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request as far as faults depend on it.
#[derive(Clone, Debug)]
pub struct Request {
    /// `GET`, `PUT` …
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Bytes of its body.
    pub bytes: usize,
}

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The proxy answers it and passes nothing on.
    Answer(u16, &'static str),
    /// It has its effect, and the connection ends without an answer.
    LoseAnswer,
    /// The server gets half of it, and the connection ends.
    CutRequest,
    /// The client gets half of the answer, and the connection ends.
    CutAnswer,
    /// It takes this much longer.
    Delay(Duration),
}

type Rule = Box<dyn FnMut(&Request) -> Fault + Send>;

struct State {
    /// Asked in turn, as far as they answer at all.
    servers: Mutex<Vec<String>>,
    next: AtomicUsize,
    rule: Mutex<Rule>,
    seen: Mutex<Vec<Request>>,
    ended: AtomicBool,
}

/// A running proxy; ends when dropped.
pub struct Faults {
    address: String,
    state: Arc<State>,
}

impl Faults {
    /// Starts one in front of the server at `server`, without faults.
    #[must_use]
    pub fn start(server: &str) -> Faults {
        Faults::before(vec![server.into()])
    }

    /// Starts one that sends requests to these servers in turn, as a load balancer does: to the
    /// next one where nobody listens. Without faults of its own.
    #[must_use]
    pub fn before(servers: Vec<String>) -> Faults {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(State {
            servers: Mutex::new(servers),
            next: AtomicUsize::new(0),
            rule: Mutex::new(Box::new(|_| Fault::None)),
            seen: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let accepting = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.ended.load(Ordering::Relaxed) {
                    return;
                }
                let state = accepting.clone();
                std::thread::spawn(move || {
                    // Either side may end a connection at any time.
                    let _ = client.and_then(|client| serve(&state, client));
                });
            }
        });
        Faults { address, state }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.clone()
    }

    /// Sends requests to these from now on, as a balancer does that asks servers for their health.
    pub fn set_servers(&self, servers: Vec<String>) {
        *self.state.servers.lock().unwrap() = servers;
    }

    /// The faults from now on.
    pub fn set(&self, rule: impl FnMut(&Request) -> Fault + Send + 'static) {
        *self.state.rule.lock().unwrap() = Box::new(rule);
    }

    /// Nothing happens from now on.
    pub fn end(&self) {
        self.set(|_| Fault::None);
    }

    /// All requests since the last call.
    #[must_use]
    pub fn take_seen(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.seen.lock().unwrap())
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.address);
    }
}

impl State {
    fn connect(&self) -> Result<TcpStream> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut result = Err(ErrorKind::NotConnected.into());
        let servers = self.servers.lock().unwrap().clone();
        for turn in 0..servers.len() {
            result = TcpStream::connect(&servers[(first + turn) % servers.len()]);
            if result.is_ok() {
                break;
            }
        }
        result
    }
}

fn serve(state: &State, client: TcpStream) -> Result<()> {
    client.set_nodelay(true)?;
    let mut reader = BufReader::new(client.try_clone()?);
    let mut writer = client;
    while let Some(head) = read_head(&mut reader)? {
        let mut body = vec![0; length(&head)?.unwrap_or(0)];
        reader.read_exact(&mut body)?;
        let mut words = head[0].split(' ');
        let mut word = || words.next().unwrap_or_default().to_owned();
        let request = Request { method: word(), path: word(), bytes: body.len() };
        let fault = {
            let mut rule = state.rule.lock().unwrap();
            rule(&request)
        };
        let is_head = request.method == "HEAD";
        state.seen.lock().unwrap().push(request);
        match fault {
            Fault::Answer(status, code) => {
                let text = format!(
                    "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>as the test wants \
                     it</Message></Error>"
                );
                write!(
                    writer,
                    "HTTP/1.1 {status} X\r\nContent-Type: application/xml\r\nContent-Length: \
                     {}\r\n\r\n{text}",
                    text.len()
                )?;
                continue;
            }
            Fault::Delay(time) => std::thread::sleep(time),
            _ => {}
        }
        let answer = forward(state.connect()?, &head, &body, fault, is_head)?;
        match fault {
            Fault::LoseAnswer | Fault::CutRequest => return writer.shutdown(Shutdown::Both),
            Fault::CutAnswer => {
                writer.write_all(&answer[..answer.len() / 2])?;
                return writer.shutdown(Shutdown::Both);
            }
            _ => writer.write_all(&answer)?,
        }
    }
    Ok(())
}

/// Sends a request on, and returns the answer for the client.
fn forward(
    stream: TcpStream,
    head: &[String],
    body: &[u8],
    fault: Fault,
    is_head: bool,
) -> Result<Vec<u8>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut text = String::new();
    for line in head {
        let name = line.split(':').next().unwrap_or_default().to_lowercase();
        if name != "connection" {
            text += &format!("{line}\r\n");
        }
    }
    text += "Connection: close\r\n\r\n";
    let mut writer = stream.try_clone()?;
    writer.write_all(text.as_bytes())?;
    if fault == Fault::CutRequest {
        writer.write_all(&body[..body.len() / 2])?;
        writer.shutdown(Shutdown::Both)?;
        return Ok(Vec::new());
    }
    // A server may answer, and end the connection, before it has read everything.
    let written = writer.write_all(body);
    let mut reader = BufReader::new(stream);
    let Some(head) = read_head(&mut reader)? else {
        written?;
        return Err(ErrorKind::UnexpectedEof.into());
    };
    let length = length(&head)?;
    let status = head[0].split(' ').nth(1).unwrap_or_default();
    let bodiless = is_head || status == "204" || status == "304";
    let mut content = Vec::new();
    if !bodiless {
        reader.read_to_end(&mut content)?;
    }
    if length.is_some_and(|length| !bodiless && content.len() != length) {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let mut answer = Vec::new();
    for line in &head {
        if !line.to_lowercase().starts_with("connection:") {
            answer.extend_from_slice(format!("{line}\r\n").as_bytes());
        }
    }
    let chunked = head.iter().any(|line| line.to_lowercase().starts_with("transfer-encoding:"));
    if length.is_none() && !chunked && !bodiless {
        answer.extend_from_slice(format!("Content-Length: {}\r\n", content.len()).as_bytes());
    }
    answer.extend_from_slice(b"\r\n");
    answer.extend_from_slice(&content);
    Ok(answer)
}

/// The lines before the body; `None` if the connection ends instead.
fn read_head(reader: &mut BufReader<TcpStream>) -> Result<Option<Vec<String>>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return if lines.is_empty() { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
        }
        let line = line.trim_end_matches(['\r', '\n']);
        if line.is_empty() {
            return Ok(Some(lines));
        }
        lines.push(line.to_owned());
    }
}

fn length(head: &[String]) -> Result<Option<usize>> {
    let mut fields = head.iter().filter_map(|line| line.split_once(':'));
    let field = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let Some((_, value)) = field else { return Ok(None) };
    value.trim().parse().map(Some).map_err(|_| Error::new(ErrorKind::InvalidData, "a length"))
}
