//! Several UDP sockets with one address: which of them gets a packet.
//!
//! The kernel would choose by the addresses of the packet. Then a host whose address changes (a NAT
//! forgets it) would come to a socket that does not know its connection. So a filter chooses by the
//! first byte of the connection ID to which the packet goes (RFC 9000 §17). Each endpoint makes
//! connection IDs that lead back to it. The first packets of a connection have an ID of the
//! client's choice, and all of these lead to one socket, too.

use quinn::ConnectionIdGenerator;
use quinn_proto::{
    ConnectionId, HashedConnectionIdGenerator, InvalidCid, RandomConnectionIdGenerator,
};
use socket2::Socket;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The place of an endpoint among those of one address.
#[derive(Clone, Copy)]
pub(crate) struct Steering {
    place: u8,
    count: u8,
}

/// The longest that QUIC has (RFC 9000 §17.2).
const FIRST_ID_BYTES: usize = 20;
/// Most sockets of one address.
pub const SOCKETS_MAX: usize = 64;

impl Steering {
    /// For the socket that was the `place`-th to take the address, of `count`.
    pub fn new(place: usize, count: usize) -> Steering {
        debug_assert!(place < count && count <= SOCKETS_MAX);
        Steering { place: place as u8, count: count as u8 }
    }

    /// Makes connection IDs that lead to this place.
    pub fn connection_ids(self) -> impl ConnectionIdGenerator + 'static {
        PlacedIds { steering: self, ids: HashedConnectionIdGenerator::new() }
    }

    fn leads_here(self, id: &ConnectionId) -> bool {
        id.first().is_some_and(|first| first % self.count == self.place)
    }
}

struct PlacedIds {
    steering: Steering,
    ids: HashedConnectionIdGenerator,
}

impl ConnectionIdGenerator for PlacedIds {
    fn generate_cid(&mut self) -> ConnectionId {
        loop {
            // Its first byte is random.
            let id = self.ids.generate_cid();
            if self.steering.leads_here(&id) {
                return id;
            }
        }
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        self.ids.validate(id)
    }

    fn cid_len(&self) -> usize {
        self.ids.cid_len()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        self.ids.cid_lifetime()
    }
}

/// Makes connection IDs for the first packets of connections (RFC 9000 §7.2).
pub(crate) type FirstIds = Arc<dyn Fn() -> ConnectionId + Send + Sync>;

/// The connection IDs of the next link of this process. All its connections go to one socket of a
/// store. Links that follow each other go to different ones, as far as the store has enough.
pub(crate) fn first_ids() -> FirstIds {
    static START: OnceLock<u8> = OnceLock::new();
    static LINKS: AtomicU8 = AtomicU8::new(0);
    let start = *START.get_or_init(|| random_id()[0]);
    first_ids_at(start.wrapping_add(LINKS.fetch_add(1, Ordering::Relaxed)))
}

fn first_ids_at(place: u8) -> FirstIds {
    Arc::new(move || {
        let mut id = random_id();
        // The rest is as unpredictable as it has to be.
        id[0] = place;
        ConnectionId::new(&id)
    })
}

fn random_id() -> [u8; FIRST_ID_BYTES] {
    let mut id = [0; FIRST_ID_BYTES];
    id.copy_from_slice(&RandomConnectionIdGenerator::new(FIRST_ID_BYTES).generate_cid());
    id
}

/// Has the kernel give packets to the sockets of an address by their connection IDs. `socket` is
/// any of them; `count` says how many there are, and their places are the order of their binding.
///
/// # Errors
/// If the kernel or a sandbox refuses.
#[allow(unsafe_code)]
pub(crate) fn attach(socket: &Socket, count: usize) -> io::Result<()> {
    // The bits of BPF instructions that libc has no names for (linux/bpf_common.h).
    const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const JUMP_IF_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const MODULO: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
    const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        // The first byte of a long header has its highest bit set.
        step(LOAD_BYTE, 0, 0, 0),
        step(JUMP_IF_SET, 2, 0, 0x80),
        // A short header: the connection ID follows.
        step(LOAD_BYTE, 0, 0, 1),
        step(JUMP, 0, 0, 1),
        // A long header: four bytes of version and one of length come before.
        step(LOAD_BYTE, 0, 0, 6),
        step(MODULO, 0, 0, count as u32),
        step(RETURN, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the descriptor is open while `socket` is borrowed. The kernel copies the program,
    // whose pointer and length are those of an array that lives until the call returns.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn links_that_follow_each_other_go_to_different_sockets() {
        for link in 0..=255_u8 {
            let first = first_ids_at(link);
            let (id, other) = (first(), first());
            assert_ne!(id, other);
            for count in [1, 2, 4, 8] {
                let place = usize::from(link) % count;
                assert!(Steering::new(place, count).leads_here(&id));
                assert!(Steering::new(place, count).leads_here(&other));
            }
        }
    }

    #[test]
    fn packets_go_where_their_connection_ids_lead() {
        let count = 5;
        let sockets = crate::Sockets::bind("127.0.0.1:0".parse().unwrap(), count).unwrap();
        let address = sockets.address();
        let (udp, _tcp) = sockets.split();
        assert_eq!(udp.len(), count);
        let udp: Vec<UdpSocket> = udp.into_iter().map(UdpSocket::from).collect();
        for socket in &udp {
            socket.set_nonblocking(false).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        }
        for (place, socket) in udp.iter().enumerate() {
            let mut ids = Steering::new(place, count).connection_ids();
            // From several addresses.
            for _ in 0..20 {
                let id = ids.generate_cid();
                ids.validate(&id).unwrap();
                let short = [&[0x40], &id[..], b"rest"].concat();
                let long = [&[0xc0, 0, 0, 0, 1, id.len() as u8], &id[..], b"rest"].concat();
                let client = UdpSocket::bind("127.0.0.1:0").unwrap();
                for packet in [short, long] {
                    client.send_to(&packet, address).unwrap();
                    let mut received = [0; 64];
                    let length = socket.recv(&mut received).unwrap();
                    assert_eq!(received[..length], packet, "to socket {place}");
                }
            }
        }
    }
}
