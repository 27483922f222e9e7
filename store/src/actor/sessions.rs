//! The sessions: who is at the other end, and the one way out for answers.
//!
//! Each answer passes [`Sessions::send`], which tells the audit recorder the outcome and renames
//! volumes for the tenant.

use super::completions::Completions;
use super::request::{ReplyTo, Request};
use super::stage::audit::AuditRecorder;
use super::stage::scope::TenantScope;
use longhaul_core::store::SHELL_SESSION;
use longhaul_core::wire::link::{
    Frame, Lane, Principal, StoreReply, ToHost, ToStore, VolumeError, VolumeReply,
};
use longhaul_link::{CloseCode, Listener, ListenerEvent};
use std::net::SocketAddr;
use std::sync::Arc;

pub(super) struct Sessions {
    listener: Listener,
    /// The rights and the view of sessions. It is a stage of the pipeline, too.
    pub scope: TenantScope,
    /// It is a stage of the pipeline, too.
    pub recorder: AuditRecorder,
    /// Answers to requests of the store itself.
    own: Completions<ToHost>,
    /// The principal of the store's own requests.
    own_principal: Arc<Principal>,
}

impl Sessions {
    pub fn new(
        listener: Listener,
        scope: TenantScope,
        recorder: AuditRecorder,
        own: Completions<ToHost>,
    ) -> Sessions {
        let own_principal = Arc::new(Principal::embedded());
        Sessions { listener, scope, recorder, own, own_principal }
    }

    pub async fn event(&mut self) -> Option<ListenerEvent> {
        self.listener.event().await
    }

    pub fn try_event(&mut self) -> Option<ListenerEvent> {
        self.listener.try_event()
    }

    pub async fn shutdown(self) {
        self.listener.shutdown().await;
    }

    /// For numbers, addresses and the like. Answers pass [`Sessions::send`].
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    pub fn opened(
        &mut self,
        session: u64,
        peer: SocketAddr,
        principal: &Principal,
        software: &str,
    ) {
        self.recorder.opened(session, peer, principal, software);
        self.scope.opened(session, principal);
    }

    pub fn closed(&mut self, session: u64) {
        self.scope.closed(session);
        self.recorder.closed(session);
    }

    /// A frame that came in, as a request.
    pub fn request(&self, session: u64, lane: Lane, body: Frame<ToStore>) -> Request {
        let principal = self.scope.principal(session);
        let principal = principal.unwrap_or_else(|| self.own_principal.clone());
        Request::new(session, lane, principal, body)
    }

    /// A request of the store itself.
    pub fn own_request(&self, message: ToStore) -> Request {
        let principal = self.own_principal.clone();
        Request::new(SHELL_SESSION.0, Lane::Control, principal, message.into())
    }

    /// Sends a frame to whom it is for: all answers go this way.
    pub fn send(&self, session: u64, lane: Lane, frame: Frame<ToHost>) {
        let Frame { message, payload } = frame;
        if session == SHELL_SESSION.0 {
            return self.own.send(message);
        }
        self.recorder.answered(session, &message);
        let message = self.scope.outbound(session, message);
        self.listener.send(session, lane, Frame { message, payload });
    }

    /// Answers a request.
    pub fn answer(&self, to: ReplyTo, message: ToHost) {
        self.send(to.session, to.lane, message.into());
    }

    /// Answers an operation on volumes that these asked for.
    pub fn reply(&self, all: &[ReplyTo], result: &Result<VolumeReply, VolumeError>) {
        for to in all {
            self.answer(*to, ToHost::Volume { request: to.request, result: result.clone() });
        }
    }

    /// Answers an operation on stores.
    pub fn reply_store(&self, to: ReplyTo, result: Result<StoreReply, VolumeError>) {
        self.answer(to, ToHost::Store { request: to.request, result });
    }

    /// Ends the session of a peer that broke the protocol.
    pub fn close(&self, session: u64, why: &str) {
        self.listener.close_session(session, CloseCode::Protocol, why);
    }
}
