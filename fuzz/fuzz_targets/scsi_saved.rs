//! Saved reservations with any bytes. No bytes cause a panic. A device made from them answers
//! PERSISTENT RESERVE IN, and CLEAR works. It understands its own saves: a second device made from
//! such a save shows the same keys.
//!
//! Input: settings (bit 0: put the checksum right), then the bytes.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use longhaul_core::block::Time;
use longhaul_core::front::scsi::{
    Attribute, Command, CommandResponse, DataIn, Device, DeviceOutput, Nexus, Status,
};
use longhaul_fuzz::iscsi::device;
use longhaul_fuzz::seeds;

const NOW: Time = Time(1);
const CRC: std::ops::Range<usize> = 20..24;
const ALL_REGISTRANTS: u8 = 8;

struct Host {
    device: Device,
    next: u64,
    saved: Option<Bytes>,
}

impl Host {
    fn new(reservations: Bytes) -> Host {
        let mut device = Device::new(device(512, reservations));
        for nexus in [1, 2] {
            let initiator_port = format!("iqn.2001-04.com.example:i,i,0x80000000000{nexus}");
            device.handle_nexus(NOW, nexus, Nexus { initiator_port, relative_port: 1 });
        }
        let mut host = Host { device, next: 10, saved: None };
        for nexus in [1, 2] {
            // The unit attention of a fresh nexus.
            host.run(nexus, &[0; 6], &[]);
        }
        host
    }

    fn run(&mut self, nexus: u64, cdb: &[u8], data: &[u8]) -> CommandResponse {
        self.next += 1;
        let task = self.next;
        let mut whole = [0; 16];
        whole[..cdb.len()].copy_from_slice(cdb);
        let command = Command {
            lun: 0,
            cdb: whole,
            more_cdb: Bytes::new(),
            attribute: Attribute::Simple,
            out_bytes: data.len() as u64,
            in_bytes: 1 << 20,
        };
        self.device.handle_command(NOW, nexus, task, command);
        let mut end = None;
        while let Some(output) = self.device.poll_output() {
            match output {
                DeviceOutput::WantData { task, bytes } => {
                    let data = Bytes::copy_from_slice(&data[..bytes as usize]);
                    self.device.handle_data(NOW, task, vec![data]);
                }
                DeviceOutput::SaveReservations { id, data } => {
                    self.saved = Some(data);
                    self.device.handle_saved(NOW, id, Ok(()));
                }
                DeviceOutput::Response { response, .. } => end = Some(response),
                other => panic!("{other:?}"),
            }
        }
        end.expect("every command ends")
    }

    /// Keys and the reservation.
    fn shown(&mut self) -> (Vec<u8>, Vec<u8>) {
        let [keys, reservation] = [0, 1].map(|action| {
            let response = self.run(1, &[0x5e, action, 0, 0, 0, 0, 0, 0xff, 0xff, 0], &[]);
            assert_eq!(response.status, Status::Good, "{response:?}");
            // Without the generation, which begins anew.
            match response.data {
                DataIn::Parameter(data) => data[4..].to_vec(),
                other => panic!("{other:?}"),
            }
        });
        (keys, reservation)
    }

    fn out(&mut self, nexus: u64, action: u8, kind: u8, key: u64, new: u64, flags: u8) -> Status {
        let mut list = [0; 24];
        list[..8].copy_from_slice(&key.to_be_bytes());
        list[8..16].copy_from_slice(&new.to_be_bytes());
        list[20] = flags;
        self.run(nexus, &[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], &list).status
    }
}

fn make_seeds() -> Vec<Vec<u8>> {
    let mut host = Host::new(Bytes::new());
    host.out(1, 0, 0, 0, 5, 1);
    let one = host.saved.clone().unwrap_or_default();
    host.out(2, 0, 0, 0, 6, 1);
    host.out(2, 1, 1, 6, 0, 0);
    let held = host.saved.clone().unwrap_or_default();
    host.out(2, 2, 1, 6, 0, 0);
    host.out(1, 1, ALL_REGISTRANTS, 5, 0, 0);
    let all = host.saved.clone().unwrap_or_default();
    [&one[..], &held, &all, &[]].iter().map(|saved| [&[1][..], saved].concat()).collect()
}

fuzz_target!(init: seeds("scsi_saved", make_seeds), |data: &[u8]| {
    let Some((settings, saved)) = data.split_first() else { return };
    let mut saved = saved.to_vec();
    if settings & 1 == 1 && saved.len() >= CRC.end {
        let crc = crc32c::crc32c(&saved[..CRC.start]);
        let crc = crc32c::crc32c_append(crc, &saved[CRC.end..]);
        saved[CRC].copy_from_slice(&crc.to_le_bytes());
    }
    let mut host = Host::new(saved.into());
    let (before, _) = host.shown();
    host.run(1, &[0x5e, 3, 0, 0, 0, 0, 0, 0xff, 0xff, 0], &[]);
    host.run(2, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
    // REGISTER AND IGNORE EXISTING KEY, with APTPL: the device saves everything anew.
    let status = host.out(1, 6, 0, 0, 77, 1);
    assert_eq!(status, Status::Good, "with {} bytes of keys", before.len());
    let again = Host::new(host.saved.clone().unwrap_or_default()).shown();
    assert_eq!(host.shown(), again, "what was saved is not what was there");
    // CLEAR.
    assert_eq!(host.out(1, 3, 0, 77, 0, 0), Status::Good);
    let (keys, reservation) = host.shown();
    assert_eq!((keys, reservation), (vec![0; 4], vec![0; 4]), "cleared");
});
