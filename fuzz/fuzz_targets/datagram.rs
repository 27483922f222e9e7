//! The datagram client and server. No datagrams cause a panic, and memory stays bounded. A decoded
//! message encodes to the same bytes. A request comes out at most once. The store never executes a
//! request that changes something.
//!
//! Input: side, then datagrams. Before each come a byte for the time that passes, and its length.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use longhaul_core::block::{Range, Time};
use longhaul_core::link::{
    DatagramClient, DatagramServer, MAX_CALLS, Output, Packet, fits_datagram,
};
use longhaul_core::wire::link::{FRAME_PREFIX_BYTES, Frame, ToHost, ToStore};
use longhaul_fuzz::{Input, seeds, world};
use std::time::Duration;

const DATAGRAM_BYTES: usize = 1400;

fn read(request: u64) -> Frame<ToStore> {
    let (volume, range) = (world::VOLUME, Range::new(request * 8, 16));
    ToStore::Read { request, volume, epoch: 1, range }.into()
}

fn script(side: u8, datagrams: &[Bytes]) -> Vec<u8> {
    let mut bytes = vec![side];
    for datagram in datagrams {
        bytes.push(1);
        bytes.extend((datagram.len() as u16).to_le_bytes());
        bytes.extend(datagram);
    }
    bytes
}

/// Requests of a host and replies of a store.
fn make_seeds() -> Vec<Vec<u8>> {
    let mut asker = DatagramClient::new(Duration::from_millis(2));
    let mut answerer = DatagramServer::new();
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    for request in 0..4 {
        asker.handle_request(Time(0), read(request), Some(DATAGRAM_BYTES));
    }
    while let Some(Output::Datagram(datagram)) = asker.poll() {
        requests.push(datagram.clone());
        let frame = answerer.handle_datagram(datagram, DATAGRAM_BYTES).unwrap();
        let _ = answerer.handle_reply(answer(&frame), DATAGRAM_BYTES);
        replies.extend(std::iter::from_fn(|| answerer.poll_datagram()));
    }
    vec![script(0, &requests), script(1, &replies)]
}

fn answer(frame: &Frame<ToStore>) -> Frame<ToHost> {
    match frame.message {
        ToStore::Read { request, volume, range, .. }
        | ToStore::EarlyRead { request, volume, range, .. } => {
            let message = ToHost::Data { request, volume, result: Ok(Vec::new()) };
            Frame { message, payload: vec![5; range.bytes() as usize].into() }
        }
        ToStore::Status { request, volume, .. } => {
            ToHost::Status { request, volume, result: Ok(Vec::new()) }.into()
        }
        _ => panic!("{frame:?} changes something"),
    }
}

fuzz_target!(init: seeds("datagram", make_seeds), |data: &[u8]| {
    let mut input = Input(data);
    let side = input.byte();
    let mut now = Time(0);
    let mut asker = DatagramClient::new(Duration::from_millis(2));
    let mut answerer = DatagramServer::new();
    let mut open = [false; 4];
    if side & 1 == 1 {
        for (request, open) in open.iter_mut().enumerate() {
            asker.handle_request(now, read(request as u64), Some(DATAGRAM_BYTES));
            *open = true;
        }
    }
    while !input.0.is_empty() {
        now = now.after(Duration::from_millis(u64::from(input.byte())));
        let length = usize::from(u16::from_le_bytes([input.byte(), input.byte()]));
        let (datagram, rest) = input.0.split_at(length.min(input.0.len()));
        input.0 = rest;
        let datagram = Bytes::copy_from_slice(datagram);
        if let Some(packet) = Packet::decode(datagram.clone()) {
            assert_eq!(packet.encode(), datagram);
        }
        if side & 1 == 0 {
            if let Some(frame) = answerer.handle_datagram(datagram, DATAGRAM_BYTES) {
                assert!(fits_datagram(&frame.message));
                // The server answers some at once, and some never.
                if length % 2 == 0 {
                    assert!(answerer.handle_reply(answer(&frame), DATAGRAM_BYTES).is_none());
                }
            }
            while let Some(datagram) = answerer.poll_datagram() {
                assert!(datagram.len() <= DATAGRAM_BYTES);
            }
            continue;
        }
        asker.handle_datagram(now, datagram);
        if asker.poll_timeout().is_some_and(|at| at <= now) {
            asker.handle_timeout(now);
        }
        while let Some(output) = asker.poll() {
            let request = match output {
                Output::Datagram(datagram) => {
                    assert!(datagram.len() < 200 + FRAME_PREFIX_BYTES);
                    continue;
                }
                Output::Stream(frame) => match frame.message {
                    ToStore::Read { request, .. } => request,
                    other => panic!("{other:?}"),
                },
                Output::Reply(frame) => match frame.message {
                    ToHost::Data { request, .. } => request,
                    other => panic!("{other:?}"),
                },
            };
            assert!(std::mem::take(&mut open[request as usize]), "{request} comes out twice");
        }
    }
    const { assert!(MAX_CALLS >= 4) };
});
