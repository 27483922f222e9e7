//! A connection in the login phase.

use super::config::Config;
use super::connection::{CommandWindow, PduOutput};
use super::framing::Framing;
use super::identity::{Identity, Peer};
use super::login::{Login, LoginStep};
use super::parameters::Parameters;
use super::text::TextPdu;
use crate::block::Time;
use crate::wire::iscsi::ResponseHeader;

/// Longest data segment in bytes before another length was declared (§13.12).
const LOGIN_SEGMENT_BYTES: usize = 8192;

/// A login on its way to the target that has its volume ([`Target::take_login`]).
///
/// [`Target::take_login`]: super::Target::take_login
#[derive(Debug)]
pub struct MovedLogin(pub(super) Box<LoginConnection>);

/// A connection that logs in.
#[derive(Debug)]
pub(super) struct LoginConnection {
    pub(super) login: Box<Login>,
    pub(super) peer: Peer,
    pub(super) framing: Framing,
    pub(super) outlet: PduOutput,
    pub(super) limit: Time,
    /// ITT and CmdSN of the last request.
    pub(super) itt: u32,
    pub(super) cmd_sn: u32,
    /// The session that it wants to join, or 0.
    pub(super) tsih: u16,
    /// The first request has come. StatSN begins with its ExpStatSN.
    pub(super) begun: bool,
    /// The volume that the login waits for.
    pub(super) opening: Option<String>,
    pub(super) admitted: Option<(Identity, Parameters)>,
    /// The step that waits until it is known which target has the volume.
    pub(super) placing: Option<LoginStep>,
    /// This target has the volume.
    pub(super) placed: bool,
}

impl LoginConnection {
    pub(super) fn new(now: Time, config: &Config, peer: Peer, random: [u8; 32]) -> LoginConnection {
        LoginConnection {
            login: Box::new(Login::new(config, &peer, random)),
            peer,
            framing: Framing::new(LOGIN_SEGMENT_BYTES),
            outlet: PduOutput::new(),
            limit: now.after(config.login_limit),
            itt: 0,
            cmd_sn: 0,
            tsih: 0,
            begun: false,
            opening: None,
            admitted: None,
            placing: None,
            placed: !config.has_others,
        }
    }

    pub(super) fn wants_input(&self) -> bool {
        self.opening.is_none() && self.placing.is_none()
    }

    pub(super) fn wanted(&self) -> usize {
        self.framing.wanted()
    }

    /// Sends a login response. The first one has the StatSN that the initiator expects.
    pub(super) fn send(&mut self, pdu: &TextPdu, window: CommandWindow) {
        let header = ResponseHeader {
            itt: self.itt,
            stat_sn: self.outlet.stat_sn,
            exp_cmd_sn: window.expected,
            max_cmd_sn: window.max,
            data_bytes: pdu.text.len(),
            response: pdu.response,
        };
        self.outlet.stat_sn = self.outlet.stat_sn.wrapping_add(1);
        self.outlet.put(header, |sink| sink.put(pdu.text.clone()));
    }
}
