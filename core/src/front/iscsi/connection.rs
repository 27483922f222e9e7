//! One connection in the full feature phase: its numbers, and the PDUs that it sends.

use super::exchange::TextExchange;
use super::framing::Framing;
use super::{CloseReason, ConnectionId, Identity, Parameters, Peer};
use crate::block::{ReadPiece, SECTOR_BYTES, Time};
use crate::front::output::OutputQueue;
use crate::front::scsi::{DataIn, TaskId};
use crate::wire::iscsi::{BHS_BYTES, RESERVED_TAG, Response, ResponseHeader};
use bytes::{BufMut, Bytes};
use std::collections::VecDeque;

/// Copy payload with fewer bytes behind its header. A piece of its own would cost more.
const GATHER_BYTES: usize = 512;

/// Most statuses that wait for acknowledgment. An initiator that exceeds it does not acknowledge at
/// all, because the window of commands is far smaller.
pub(super) const MAX_UNACKNOWLEDGED: usize = 4096;

/// Most bytes in the data segments of such statuses.
const MAX_UNACKNOWLEDGED_BYTES: usize = 4 << 20;

/// Whether `a` comes before `b` among serial numbers (RFC 1982).
pub(super) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// ExpCmdSN and MaxCmdSN, as a PDU tells the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommandWindow {
    pub(super) expected: u32,
    pub(super) max: u32,
}

/// A PDU with a status that the initiator has not acknowledged.
#[derive(Clone, Debug)]
pub(super) struct SentStatus {
    pub(super) stat_sn: u32,
    pub(super) itt: u32,
    pub(super) response: Response,
    pub(super) data: Bytes,
    /// The task that the status ends.
    pub(super) task: Option<TaskId>,
}

/// The PDUs that wait for the shell, and their numbers. The output outlives the phase that began
/// it.
#[derive(Debug)]
pub(super) struct PduOutput {
    output: OutputQueue,
    pub(super) header_digest: bool,
    pub(super) data_digest: bool,
    /// StatSN of the next status.
    pub(super) stat_sn: u32,
    /// The shell knows that there is output.
    told: bool,
}

impl PduOutput {
    pub(super) fn new() -> PduOutput {
        PduOutput {
            output: OutputQueue::default(),
            header_digest: false,
            data_digest: false,
            stat_sn: 1,
            told: false,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.output.bytes()
    }

    pub(super) fn poll(&mut self) -> Option<Bytes> {
        let piece = self.output.poll();
        self.told = piece.is_some();
        piece
    }

    /// Whether to tell the shell now that output waits.
    pub(super) fn tell(&mut self) -> bool {
        !std::mem::replace(&mut self.told, self.output.bytes() > 0) && self.told
    }

    /// Appends a PDU; `data` puts exactly `data_bytes` into its sink.
    pub(super) fn put(
        &mut self,
        header: ResponseHeader,
        data: impl FnOnce(&mut DataSegmentSink<'_>),
    ) {
        let encoded = header.encode();
        let header_digest = self.header_digest.then(|| crc32c::crc32c(&encoded));
        self.output.head(|bytes| {
            bytes.put_slice(&encoded);
            if let Some(digest) = header_digest {
                bytes.put_u32_le(digest);
            }
        });
        if header.data_bytes == 0 {
            return;
        }
        let digest = self.data_digest.then_some(0);
        let mut sink = DataSegmentSink { output: &mut self.output, digest, bytes: 0 };
        data(&mut sink);
        debug_assert_eq!(sink.bytes, header.data_bytes);
        let padding = &[0; 3][..header.data_bytes.next_multiple_of(4) - header.data_bytes];
        let digest = sink.digest.map(|digest| crc32c::crc32c_append(digest, padding));
        self.output.head(|bytes| {
            bytes.put_slice(padding);
            if let Some(digest) = digest {
                bytes.put_u32_le(digest);
            }
        });
    }
}

/// Takes the data segment of one PDU.
#[derive(Debug)]
pub(super) struct DataSegmentSink<'a> {
    output: &'a mut OutputQueue,
    digest: Option<u32>,
    bytes: usize,
}

impl DataSegmentSink<'_> {
    pub(super) fn put(&mut self, data: Bytes) {
        self.bytes += data.len();
        if let Some(digest) = &mut self.digest {
            *digest = crc32c::crc32c_append(*digest, &data);
        }
        if data.len() <= GATHER_BYTES {
            self.output.head(|bytes| bytes.put_slice(&data));
        } else {
            self.output.payload(data);
        }
    }

    fn zeroes(&mut self, mut bytes: usize) {
        self.bytes += bytes;
        self.output.zeroes(bytes as u64);
        if let Some(digest) = &mut self.digest {
            static ZEROES: [u8; 4096] = [0; 4096];
            while bytes > 0 {
                let part = bytes.min(ZEROES.len());
                *digest = crc32c::crc32c_append(*digest, &ZEROES[..part]);
                bytes -= part;
            }
        }
    }
}

/// Reads the input of a command piece by piece.
#[derive(Debug)]
pub(super) struct DataInReader<'a> {
    data: &'a DataIn,
    index: usize,
    /// Bytes of the current piece that were read.
    skip: usize,
}

/// Bytes of a command's input.
pub(super) fn data_bytes(data: &DataIn) -> u64 {
    match data {
        DataIn::None => 0,
        DataIn::Parameter(bytes) => bytes.len() as u64,
        DataIn::Pieces(pieces) => pieces.iter().map(piece_bytes).sum(),
    }
}

fn piece_bytes(piece: &ReadPiece) -> u64 {
    match piece {
        ReadPiece::Data(data) => data.len() as u64,
        ReadPiece::Zeroes(sectors) => sectors * SECTOR_BYTES,
    }
}

impl<'a> DataInReader<'a> {
    /// A reader that starts at `offset`.
    pub(super) fn new(data: &'a DataIn, mut offset: u64) -> DataInReader<'a> {
        let mut index = 0;
        if let DataIn::Pieces(pieces) = data {
            while let Some(piece) = pieces.get(index)
                && piece_bytes(piece) <= offset
            {
                offset -= piece_bytes(piece);
                index += 1;
            }
        }
        DataInReader { data, index, skip: offset as usize }
    }

    /// Puts the next `bytes` into a sink. They must exist.
    pub(super) fn take(&mut self, mut bytes: usize, sink: &mut DataSegmentSink<'_>) {
        match self.data {
            DataIn::None => {}
            DataIn::Parameter(data) => {
                sink.put(data.slice(self.skip..self.skip + bytes));
                self.skip += bytes;
            }
            DataIn::Pieces(pieces) => {
                while bytes > 0
                    && let Some(piece) = pieces.get(self.index)
                {
                    let left = piece_bytes(piece) as usize - self.skip;
                    let part = left.min(bytes);
                    match piece {
                        ReadPiece::Data(data) => {
                            sink.put(data.slice(self.skip..self.skip + part));
                        }
                        ReadPiece::Zeroes(_) => sink.zeroes(part),
                    }
                    bytes -= part;
                    self.skip += part;
                    if part == left {
                        self.index += 1;
                        self.skip = 0;
                    }
                }
            }
        }
    }
}

/// A connection of a session.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) cid: u16,
    pub(super) framing: Framing,
    pub(super) outlet: PduOutput,
    pub(super) parameters: Parameters,
    /// The initiator has acknowledged the statuses before this number.
    pub(super) acknowledged: u32,
    /// Statuses that are not acknowledged, if the initiator may ask for them again.
    pub(super) unacknowledged: VecDeque<SentStatus>,
    /// Bytes in their data segments.
    unacknowledged_bytes: usize,
    /// The last MaxCmdSN that this connection sent.
    pub(super) told: u32,
    /// When the last PDU arrived.
    pub(super) heard: Time,
    /// When the answer to a ping is due.
    pub(super) ping: Option<Time>,
    /// The exchange of text requests.
    pub(super) exchange: TextExchange,
    /// Tag and header of the text request that waits for the names of volumes.
    pub(super) listing: Option<(u32, [u8; BHS_BYTES])>,
    /// The connection takes no more input. It ends when its output is written.
    pub(super) closing: Option<CloseReason>,
}

impl Connection {
    /// A connection that has just logged in. The last response has told the initiator of `window`.
    pub(super) fn new(
        now: Time,
        identity: Identity,
        peer: Peer,
        parameters: Parameters,
        framing: Framing,
        outlet: PduOutput,
        (id, window): (ConnectionId, CommandWindow),
    ) -> Connection {
        let cid = identity.cid;
        Connection {
            id,
            cid,
            framing: Framing {
                header_digest: parameters.header_digest,
                data_digest: parameters.data_digest,
                max_data: parameters.target_data_segment as usize,
                ..framing
            },
            acknowledged: outlet.stat_sn,
            outlet: PduOutput {
                header_digest: parameters.header_digest,
                data_digest: parameters.data_digest,
                ..outlet
            },
            parameters,
            unacknowledged: VecDeque::new(),
            unacknowledged_bytes: 0,
            told: window.max,
            heard: now,
            ping: None,
            exchange: TextExchange::new(identity, peer, parameters.initiator_data_segment),
            listing: None,
            closing: None,
        }
    }

    /// Forgets the oldest status that was not acknowledged, if its number is before `expected`.
    pub(super) fn forget(&mut self, expected: u32) -> Option<SentStatus> {
        let sent = self.unacknowledged.pop_front_if(|sent| before(sent.stat_sn, expected))?;
        self.unacknowledged_bytes -= sent.data.len();
        Some(sent)
    }

    pub(super) fn recovers(&self) -> bool {
        self.parameters.error_recovery_level > 0
    }

    /// Longest data segment that the initiator takes, in bytes.
    pub(super) fn segment(&self) -> u32 {
        self.parameters.initiator_data_segment
    }

    /// Sends a PDU whose data segment is `data`.
    pub(super) fn send(
        &mut self,
        window: CommandWindow,
        itt: u32,
        response: Response,
        data: Bytes,
    ) {
        self.send_of(window, itt, response, data, None);
    }

    /// Sends a PDU that may end `task`.
    pub(super) fn send_of(
        &mut self,
        window: CommandWindow,
        itt: u32,
        response: Response,
        data: Bytes,
        task: Option<TaskId>,
    ) {
        let stat_sn = self.outlet.stat_sn;
        // §11.19.2 and §11.8: these carry the next StatSN but do not advance it.
        let status = match response {
            Response::NopIn { .. } => itt != RESERVED_TAG,
            Response::R2t { .. } => false,
            Response::DataIn { status, .. } => status.is_some(),
            _ => true,
        };
        if status {
            self.outlet.stat_sn = stat_sn.wrapping_add(1);
            if self.recovers() {
                let data = data.clone();
                self.unacknowledged_bytes += data.len();
                self.unacknowledged.push_back(SentStatus { stat_sn, itt, response, data, task });
                if self.unacknowledged.len() > MAX_UNACKNOWLEDGED
                    || self.unacknowledged_bytes > MAX_UNACKNOWLEDGED_BYTES
                {
                    self.close(CloseReason::Violation("statuses are not acknowledged"));
                }
            }
        }
        self.put(window, itt, stat_sn, response, data);
    }

    /// Sends a PDU with a number that it got before.
    pub(super) fn put(
        &mut self,
        window: CommandWindow,
        itt: u32,
        stat_sn: u32,
        response: Response,
        data: Bytes,
    ) {
        let header = self.header(window, itt, stat_sn, response, data.len());
        self.outlet.put(header, |sink| sink.put(data));
    }

    pub(super) fn header(
        &mut self,
        window: CommandWindow,
        itt: u32,
        stat_sn: u32,
        response: Response,
        data_bytes: usize,
    ) -> ResponseHeader {
        self.told = window.max;
        ResponseHeader {
            itt,
            stat_sn,
            exp_cmd_sn: window.expected,
            max_cmd_sn: window.max,
            data_bytes,
            response,
        }
    }

    /// Takes no more input. The first reason counts.
    pub(super) fn close(&mut self, reason: CloseReason) {
        self.closing.get_or_insert(reason);
    }
}
