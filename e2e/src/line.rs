//! A TCP line between an initiator and a portal, or between host and store, in this process. Tests
//! cut and repair it.
//!
//! A cut line is silent: sent data stays where it is, and connections neither close nor fail. A
//! switch without power does the same. A severed one also loses its connections, as behind a
//! restarted router.

use std::io::{ErrorKind, Read as _, Result, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long a thread sleeps before it looks whether the line is up, or the test over.
const TICK: Duration = Duration::from_millis(20);

#[derive(Default)]
struct State {
    cut: AtomicBool,
    /// Connections of an earlier number are over.
    number: AtomicU64,
    over: AtomicBool,
    bytes: AtomicU64,
}

/// A line to an address; its threads end with it.
pub struct Line {
    address: SocketAddr,
    state: Arc<State>,
}

impl Line {
    /// Listens on a free port of 127.0.0.1 and forwards to `to`.
    ///
    /// # Panics
    /// If there is no port.
    #[must_use]
    pub fn start(to: &str) -> Line {
        Line::at("127.0.0.1:0", to)
    }

    /// Listens on an address and forwards to `to`.
    ///
    /// # Panics
    /// If the address cannot be had.
    #[must_use]
    pub fn at(address: &str, to: &str) -> Line {
        let listener = TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let (shared, to) = (state.clone(), to.to_owned());
        std::thread::spawn(move || accept(&listener, &to, &shared));
        Line { address, state }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Lets nothing through from now on.
    pub fn cut(&self) {
        self.state.cut.store(true, Ordering::SeqCst);
    }

    /// Ends all connections, and lets nothing through from now on.
    pub fn sever(&self) {
        self.cut();
        self.state.number.fetch_add(1, Ordering::SeqCst);
    }

    /// Lets everything through again, also delayed data.
    pub fn restore(&self) {
        self.state.cut.store(false, Ordering::SeqCst);
    }

    /// How many bytes it has let through, in both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.state.bytes.load(Ordering::SeqCst)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
    }
}

fn accept(listener: &TcpListener, to: &str, state: &Arc<State>) {
    while !state.over.load(Ordering::SeqCst) {
        let accepted = match state.cut.load(Ordering::SeqCst) {
            true => Err(ErrorKind::WouldBlock.into()),
            false => listener.accept(),
        };
        match accepted {
            // If nobody listens there, the connection ends here.
            Ok((near, _)) => drop(join(&near, to, state)),
            Err(_) => std::thread::sleep(TICK),
        }
    }
}

fn join(near: &TcpStream, to: &str, state: &Arc<State>) -> Result<()> {
    let far = TcpStream::connect(to)?;
    for stream in [near, &far] {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TICK))?;
    }
    let number = state.number.load(Ordering::SeqCst);
    for (from, to) in [(near, &far), (&far, near)] {
        let (from, to, state) = (from.try_clone()?, to.try_clone()?, state.clone());
        std::thread::spawn(move || {
            let _ = pump(&from, &to, &state, number);
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}

fn pump(mut from: &TcpStream, mut to: &TcpStream, state: &State, number: u64) -> Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let over =
        || state.over.load(Ordering::SeqCst) || state.number.load(Ordering::SeqCst) != number;
    while !over() {
        if state.cut.load(Ordering::SeqCst) {
            std::thread::sleep(TICK);
            continue;
        }
        let length = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(error) => return Err(error),
        };
        // Data that the line had read at the cut is on it, and arrives after the repair.
        while state.cut.load(Ordering::SeqCst) && !over() {
            std::thread::sleep(TICK);
        }
        if over() {
            return Ok(());
        }
        to.write_all(&buffer[..length])?;
        state.bytes.fetch_add(length as u64, Ordering::SeqCst);
    }
    Ok(())
}
