//! Sessions between a host's volume and a store process: four lanes each way.
//!
//! Most sessions also have a datagram client and a datagram server. Datagrams keep no order, get
//! lost and come twice.
//!
//! Promises: within a lane frames arrive in order and at most once; lanes do not wait for each
//! other. A cut loses, lane by lane, everything from some frame on, and the two ends notice at
//! different times. Frames travel as bytes.

use crate::rng::Rng;
use bytes::{Bytes, BytesMut};
use longhaul_core::block::Time;
use longhaul_core::link::{AskCounters, DatagramClient, DatagramServer};
use longhaul_core::wire::link::{Frame, Lane};
use std::collections::VecDeque;
use std::time::Duration;

const MS: u64 = 1_000_000;

/// The quality of a link.
#[derive(Clone, Copy, Debug)]
pub struct Quality {
    /// One-way delay in nanoseconds.
    pub delay: u64,
    /// Odds of a frame that is much later, in parts per million.
    pub late: u64,
}

/// One lane in one direction.
#[derive(Debug, Default)]
pub struct Pipe {
    frames: VecDeque<Bytes>,
    last: Time,
    /// Due deliveries that wait because the receiver takes no input.
    pub held: u64,
}

impl Pipe {
    /// Sends a frame; the time at which its delivery is due.
    pub fn send(&mut self, now: Time, bytes: Bytes, quality: Quality, rng: &mut Rng) -> Time {
        let mut delay = rng.between(quality.delay / 2, quality.delay * 2);
        if rng.ppm(quality.late) {
            delay += rng.spread(10 * MS, 1000 * MS);
        }
        self.last = Time(now.0 + delay + 1).max(self.last);
        self.frames.push_back(bytes);
        self.last
    }

    /// Takes the frame whose delivery is due; none if a cut lost it.
    pub fn receive(&mut self) -> Option<Bytes> {
        self.frames.pop_front()
    }

    fn cut(&mut self, rng: &mut Rng) -> usize {
        let keep = rng.index(self.frames.len() + 1);
        let lost = self.frames.len() - keep;
        self.frames.truncate(keep);
        lost
    }
}

/// A session's datagram client and datagram server, and the fate of their datagrams.
#[derive(Debug)]
pub struct Datagrams {
    /// The host's.
    pub client: DatagramClient,
    /// The store's.
    pub server: DatagramServer,
    /// The time of the host's next call.
    pub timer: Option<Time>,
    /// Its totals that are in the world's.
    pub counted: AskCounters,
    /// Odds that a datagram gets lost, in parts per million.
    loss: u64,
    /// Odds of one that comes twice.
    twice: u64,
}

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Host to store.
    Up,
    /// Store to host.
    Down,
}

/// A session.
#[derive(Debug)]
pub struct Session {
    /// Host index.
    pub host: usize,
    /// Volume index.
    pub volume: usize,
    /// Store index.
    pub store: usize,
    /// The store process's incarnation it belongs to.
    pub store_incarnation: u64,
    /// Whether frames sent now can arrive.
    pub connected: bool,
    /// Whether the host still believes in it.
    pub host_open: bool,
    /// Whether the store still believes in it.
    pub store_open: bool,
    up: [Pipe; 4],
    down: [Pipe; 4],
    /// If the session carries datagrams.
    pub datagrams: Option<Datagrams>,
    quality: Quality,
    rng: Rng,
}

impl Session {
    /// A connected session.
    #[must_use]
    pub fn new(
        (host, volume): (usize, usize),
        (store, store_incarnation): (usize, u64),
        quality: Quality,
        mut rng: Rng,
    ) -> Session {
        let datagrams = rng.percent(80).then(|| Datagrams {
            client: DatagramClient::new(Duration::from_nanos(quality.delay * 2)),
            server: DatagramServer::new(),
            timer: None,
            counted: AskCounters::default(),
            loss: rng.below(300_000),
            twice: rng.below(100_000),
        });
        Session {
            datagrams,
            host,
            volume,
            store,
            store_incarnation,
            connected: true,
            host_open: true,
            store_open: true,
            up: Default::default(),
            down: Default::default(),
            quality,
            rng,
        }
    }

    /// One lane in one direction.
    pub fn pipe(&mut self, direction: Direction, lane: Lane) -> &mut Pipe {
        match direction {
            Direction::Up => &mut self.up[lane as usize],
            Direction::Down => &mut self.down[lane as usize],
        }
    }

    /// Sends a frame. Returns the time of its delivery; `None` after a cut of the link.
    pub fn send(
        &mut self,
        now: Time,
        direction: Direction,
        lane: Lane,
        bytes: Bytes,
    ) -> Option<Time> {
        if !self.connected {
            return None;
        }
        let (quality, mut rng) = (self.quality, self.rng.clone());
        let due = self.pipe(direction, lane).send(now, bytes, quality, &mut rng);
        self.rng = rng;
        Some(due)
    }

    /// Sends a datagram. Returns the times at which it arrives: none if it gets lost.
    pub fn carry(&mut self, now: Time) -> Vec<Time> {
        let (rng, quality) = (&mut self.rng, self.quality);
        let Some(datagrams) = self.datagrams.as_ref().filter(|_| self.connected) else {
            return Vec::new();
        };
        let copies = 1 + u64::from(rng.ppm(datagrams.twice));
        let mut arrivals = Vec::new();
        for _ in 0..copies {
            if !rng.ppm(datagrams.loss) {
                arrivals.push(Time(now.0 + rng.between(quality.delay / 2, quality.delay * 2) + 1));
            }
        }
        arrivals
    }

    /// Cuts the link. Returns the number of lost frames.
    pub fn cut(&mut self) -> usize {
        self.connected = false;
        let rng = &mut self.rng;
        self.up.iter_mut().chain(&mut self.down).map(|pipe| pipe.cut(rng)).sum()
    }
}

/// The bytes of a frame.
///
/// # Errors
/// If the frame is over the protocol's limits, which no machine may produce.
pub fn encode<M>(frame: &Frame<M>) -> Result<Bytes, String>
where
    Frame<M>: EncodeHead,
{
    let head = frame.head()?;
    let mut bytes = BytesMut::with_capacity(head.len() + frame.payload.len());
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(&frame.payload);
    Ok(bytes.freeze())
}

/// Frames whose head can be encoded: both directions.
pub trait EncodeHead: Sized {
    /// The head.
    ///
    /// # Errors
    /// As for [`Frame::encode_head`].
    fn head(&self) -> Result<Bytes, String>;

    /// The frame that exactly these bytes are.
    ///
    /// # Errors
    /// If they are not one whole frame.
    fn whole(bytes: Bytes) -> Result<Self, String>;
}

macro_rules! encode_head {
    ($message:ty) => {
        impl EncodeHead for Frame<$message> {
            fn head(&self) -> Result<Bytes, String> {
                self.encode_head().map_err(|error| error.to_string())
            }

            fn whole(bytes: Bytes) -> Result<Self, String> {
                let mut buffer = BytesMut::from(bytes);
                match Frame::take(&mut buffer) {
                    Ok(Some(frame)) if buffer.is_empty() => Ok(frame),
                    Ok(_) => Err("not one whole frame".to_owned()),
                    Err(error) => Err(error.to_string()),
                }
            }
        }
    };
}

encode_head!(longhaul_core::wire::link::ToStore);
encode_head!(longhaul_core::wire::link::ToHost);
