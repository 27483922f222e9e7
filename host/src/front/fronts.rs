//! The front threads of a host, and the ways to them.

use super::Front;
use super::placement::{Placement, Seat};
use crate::iscsi::{IscsiConnection, IscsiHome, MovedIscsi};
use crate::nbd::{MovedNbd, NbdConnection, NbdHome};
use crate::registry::others::{Home, OtherThreads};
use anyhow::{Context as _, Result};
use futures_util::future::LocalBoxFuture;
use longhaul_core::front::iscsi::{Asker, CopyAnswer, CopyMessage, CopyQuestion, TargetId};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot};

/// Jobs that may wait for a front thread. The sender of another one waits.
const JOBS: usize = 256;

type JobFuture = Pin<Box<dyn Future<Output = ()>>>;

/// A job that one front thread gives another.
pub type Job = Box<dyn FnOnce(Rc<Front>) -> JobFuture + Send>;

/// The jobs of a front thread.
pub type Jobs = mpsc::Receiver<Job>;

/// The way to a front thread.
#[derive(Clone)]
pub struct FrontHandle {
    jobs: mpsc::Sender<Job>,
}

/// The way to the thread that has a volume, and the seat that keeps the volume there.
struct PlacedFront(FrontHandle, Seat);

/// The ways to all threads, once there are several.
pub type Ways = Arc<OnceLock<Weak<Fronts>>>;

/// A front thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the host is stopping")]
pub struct FrontGone;

impl FrontHandle {
    /// A way, and its end.
    pub fn new() -> (FrontHandle, Jobs) {
        let (jobs, receiver) = mpsc::channel(JOBS);
        (FrontHandle { jobs }, receiver)
    }

    /// Has the thread do a job, and waits for its result.
    ///
    /// # Errors
    /// If the thread has ended.
    pub async fn call<T, F>(
        &self,
        job: impl FnOnce(Rc<Front>) -> F + Send + 'static,
    ) -> Result<T, FrontGone>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (sender, result) = oneshot::channel();
        let job: Job = Box::new(move |front| {
            let done = job(front);
            // Perhaps nobody waits for it any more.
            Box::pin(async move { drop(sender.send(done.await)) })
        });
        self.jobs.send(job).await.map_err(|_| FrontGone)?;
        result.await.map_err(|_| FrontGone)
    }
}

/// Starts the thread of this number, which serves the jobs.
type Start = Box<dyn Fn(usize, Jobs) -> Result<JoinHandle<()>> + Send + Sync>;

/// All front threads. A thread starts with its first volume.
pub struct Fronts {
    placement: Arc<Placement>,
    threads: Mutex<Threads>,
    start: Start,
}

struct Threads {
    by_number: Vec<Option<FrontThread>>,
    /// The host is stopping.
    closed: bool,
}

struct FrontThread {
    handle: FrontHandle,
    /// Of all but the first, which is the caller's.
    thread: Option<JoinHandle<()>>,
}

impl Fronts {
    /// The first thread, and `start` for the others.
    pub fn new(placement: Arc<Placement>, first: FrontHandle, start: Start) -> Fronts {
        let mut by_number: Vec<_> = (0..placement.threads()).map(|_| None).collect();
        by_number[0] = Some(FrontThread { handle: first, thread: None });
        let threads = Mutex::new(Threads { by_number, closed: false });
        Fronts { placement, threads, start }
    }

    /// No thread starts any more. One that did could miss the end of the others.
    pub fn close(&self) {
        self.lock().closed = true;
    }

    /// The thread that has the volume of a name, or is to have it, with the seat that keeps it
    /// there.
    ///
    /// # Errors
    /// If the thread cannot start, or the host is stopping.
    pub fn of(&self, name: &str) -> Result<(FrontHandle, Seat)> {
        let seat = self.placement.sit(name);
        let threads = &mut *self.lock();
        let place = &mut threads.by_number[seat.thread()];
        if let Some(front) = place {
            return Ok((front.handle.clone(), seat));
        }
        if threads.closed {
            return Err(FrontGone.into());
        }
        let (handle, jobs) = FrontHandle::new();
        let thread = (self.start)(seat.thread(), jobs).context("cannot start a front thread")?;
        *place = Some(FrontThread { handle: handle.clone(), thread: Some(thread) });
        Ok((handle, seat))
    }

    /// The thread that has the volume of a name, or the first thread if none has.
    ///
    /// # Errors
    /// If the thread cannot start.
    pub fn of_known(&self, name: &str) -> Result<(FrontHandle, Seat)> {
        match (self.placement.sit_on(name, 0), self.get(0)) {
            (Some(seat), Some(first)) => Ok((first, seat)),
            _ => self.of(name),
        }
    }

    /// The thread of a number, if it has started.
    pub fn get(&self, number: usize) -> Option<FrontHandle> {
        self.lock().by_number.get(number)?.as_ref().map(|front| front.handle.clone())
    }

    /// The threads that have started, in their order.
    pub fn started(&self) -> Vec<FrontHandle> {
        self.lock().by_number.iter().flatten().map(|front| front.handle.clone()).collect()
    }

    /// Has all threads do the same, and collects the results. A thread that has ended has none.
    pub async fn each<T, F>(&self, job: impl Fn(Rc<Front>) -> F + Clone + Send + 'static) -> Vec<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let calls = self.started().into_iter().map(|front| {
            let job = job.clone();
            async move { front.call(job).await }
        });
        futures_util::future::join_all(calls).await.into_iter().flatten().collect()
    }

    /// Waits for the threads beside the first, which have to end by themselves.
    pub fn join(&self) {
        let others = |threads: &mut Threads| -> Vec<FrontThread> {
            threads.by_number.iter_mut().skip(1).filter_map(Option::take).collect()
        };
        let threads = others(&mut self.lock());
        for thread in threads.into_iter().filter_map(|front| front.thread) {
            // It has reported its panic already.
            let _ = thread.join();
        }
    }

    /// A panic with the lock held leaves a list of whole entries behind.
    fn lock(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The other threads, as thread number `here` sees them.
pub(super) struct Others {
    pub here: usize,
    pub ways: Ways,
}

impl Others {
    fn fronts(&self) -> Option<Arc<Fronts>> {
        self.ways.get().and_then(Weak::upgrade)
    }
}

impl OtherThreads for Others {
    fn place(&self, name: &str, attached: bool) -> Result<Option<Box<dyn Home>>> {
        let Some(fronts) = self.fronts() else { return Ok(None) };
        let (front, seat) = if attached { fronts.of(name)? } else { fronts.of_known(name)? };
        let elsewhere = seat.thread() != self.here;
        Ok(elsewhere.then(|| Box::new(PlacedFront(front, seat)) as Box<dyn Home>))
    }

    fn names(&self, attached: bool) -> LocalBoxFuture<'static, Vec<String>> {
        let fronts = self.fronts();
        Box::pin(async move {
            let names = move |front: Rc<Front>| async move { front.registry.names(attached) };
            let Some(fronts) = fronts else { return Vec::new() };
            let mut names = fronts.each(names).await.concat();
            names.sort_unstable();
            names
        })
    }

    fn ask(
        &self,
        asker: Asker,
        question: CopyQuestion,
    ) -> LocalBoxFuture<'static, Vec<(TargetId, CopyAnswer)>> {
        let (fronts, here) = (self.fronts(), self.here);
        let ask = move |front: Rc<Front>| {
            let (asker, question) = (asker.clone(), question.clone());
            async move {
                let other = front.number != here;
                other.then(|| (front.number, front.target.answer_copy(&asker, question)))
            }
        };
        Box::pin(async move {
            let Some(fronts) = fronts else { return Vec::new() };
            fronts.each(ask).await.into_iter().flatten().collect()
        })
    }

    fn tell(&self, to: TargetId, message: CopyMessage) -> LocalBoxFuture<'static, bool> {
        let (front, here) = (self.fronts().and_then(|fronts| fronts.get(to)), self.here);
        Box::pin(async move {
            let Some(front) = front else { return false };
            let told = front.call(move |front| async move { front.target.told(here, message) });
            told.await.is_ok()
        })
    }
}

impl Home for PlacedFront {}

impl NbdHome for PlacedFront {
    fn take_nbd(self: Box<Self>, moved: MovedNbd) -> LocalBoxFuture<'static, io::Result<()>> {
        let PlacedFront(front, seat) = *self;
        Box::pin(async move {
            let resume = move |front: Rc<Front>| async move {
                tokio::task::spawn_local(async move {
                    NbdConnection::resume(front.server.clone(), moved).await;
                    drop(seat);
                });
            };
            front.call(resume).await.map_err(io::Error::other)
        })
    }
}

impl IscsiHome for PlacedFront {
    fn take_iscsi(self: Box<Self>, moved: MovedIscsi) -> LocalBoxFuture<'static, io::Result<()>> {
        let PlacedFront(front, seat) = *self;
        Box::pin(async move {
            let resume = move |front: Rc<Front>| async move {
                tokio::task::spawn_local(async move {
                    IscsiConnection::resume(front.target.clone(), moved).await;
                    drop(seat);
                });
            };
            front.call(resume).await.map_err(io::Error::other)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn threads_start_with_their_volumes_and_not_while_the_host_stops() {
        let started = Arc::new(AtomicUsize::new(0));
        let fronts = Fronts::new(Placement::new(3), FrontHandle::new().0, {
            let started = started.clone();
            Box::new(move |_, jobs| {
                started.fetch_add(1, Ordering::Relaxed);
                Ok(std::thread::spawn(move || drop(jobs)))
            })
        });
        let (_, first) = fronts.of("a").unwrap();
        let (_, unknown) = fronts.of_known("nothing").unwrap();
        assert_eq!((first.thread(), unknown.thread(), started.load(Ordering::Relaxed)), (0, 0, 0));
        let (_, second) = fronts.of("b").unwrap();
        let (_, again) = fronts.of("b").unwrap();
        assert_eq!((second.thread(), again.thread(), started.load(Ordering::Relaxed)), (1, 1, 1));
        fronts.close();
        assert!(fronts.of("b").is_ok(), "it runs already");
        let refused = fronts.of("c").err().unwrap().to_string();
        assert_eq!(
            (refused.as_str(), started.load(Ordering::Relaxed)),
            ("the host is stopping", 1)
        );
        fronts.join();
    }
}
