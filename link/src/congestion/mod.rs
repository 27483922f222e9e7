//! Congestion control of the link's connections: [`control`] decides, this tells quinn.

#[cfg(test)]
mod bench;
mod control;
mod cubic;
mod delivery;
mod losses;
mod measured;
mod phase;
mod probing;
mod recent;
mod rivals;
mod startup;
#[cfg(test)]
mod tests;

pub use control::Estimate;

use control::Control;
use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics};
use quinn_proto::RttEstimator;
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

/// Later packets that arrived, from which on one counts as lost.
pub const PACKET_THRESHOLD: u32 = 3;
/// Share of the round trip after which it counts as lost when a later one arrived.
pub const TIME_THRESHOLD: f32 = 1.125;

/// Makes a controller for each path.
#[derive(Debug)]
pub struct Factory;

impl ControllerFactory for Factory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Steering(Control::new(now, current_mtu.into())))
    }
}

/// The estimate of the path by a connection's controller; `None` if it is not one of this module.
pub fn estimate(controller: Box<dyn Controller>) -> Option<Estimate> {
    let steering = controller.into_any().downcast::<Steering>().ok()?;
    Some(steering.0.estimate())
}

/// This controller takes the times of arrival itself and not from quinn. quinn reads the clock
/// once, and then the socket for as long as it may. So on a busy machine an acknowledgment may be
/// milliseconds younger than its time. A packet that seems quicker than the path makes the delay of
/// the path a standing queue. The mistake lasts as long as the least round trip counts. With a
/// later clock, times err only to the long side, like those of sending.
#[derive(Clone)]
struct Steering(Control);

impl Controller for Steering {
    fn on_sent(&mut self, now: Instant, bytes: u64, _: u64) {
        self.0.handle_sent(now, bytes);
    }

    fn on_ack(&mut self, _: Instant, sent: Instant, bytes: u64, _: bool, _: &RttEstimator) {
        self.0.handle_ack(Instant::now(), sent, bytes);
    }

    fn on_end_acks(&mut self, _: Instant, in_flight: u64, _: bool, _: Option<u64>) {
        self.0.handle_acks_end(Instant::now(), in_flight);
    }

    fn on_congestion_event(
        &mut self,
        _: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        let now = Instant::now();
        if lost_bytes == 0 {
            self.0.handle_mark(now, sent);
        } else {
            self.0.handle_loss(now, sent, lost_bytes, is_persistent_congestion);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.0.set_mtu(new_mtu.into());
    }

    fn window(&self) -> u64 {
        self.0.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.0.window();
        metrics.pacing_rate = Some(self.0.estimate().rate * 8);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.0.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
