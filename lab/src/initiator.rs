//! The few PDUs it takes to tell an iSCSI unit something that no tool at hand can say.

use anyhow::{Result, ensure};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Switches the write cache of LUN 0 of a target on or off, with MODE SELECT.
///
/// # Errors
/// If the target cannot be reached, or refuses.
pub fn set_write_cache(portal: &str, target: &str, on: bool) -> Result<()> {
    let mut stream = TcpStream::connect(portal)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.set_nodelay(true)?;
    let keys = ["InitiatorName=iqn.2026-11.io.longhaul:lab", &format!("TargetName={target}")]
        .map(|key| format!("{key}\0"))
        .concat();
    // RFC 7143 §11.12: from operational negotiation to full feature phase at once; CmdSN 1.
    let isid = [0x80, 0, 0, 0x1a, 0xb0, 0, 0, 0];
    let login = exchange(&mut stream, [0x43, 0x87], isid, [0, 0, 0, 1], &[0; 16], &keys)?;
    ensure!(login[0] == 0x23 && login[36..38] == [0, 0], "{target} refuses the login");
    // TEST UNIT READY takes the unit attention that a new nexus begins with.
    exchange(&mut stream, [0x01, 0x80], [0; 8], [0, 0, 0, 1], &[0; 16], "")?;
    // SPC-5 §6.13, §7.5.6: the caching mode page after an empty header, in page format.
    let mut list = String::from("\0\0\0\0\x08\x12");
    list.push(if on { '\x04' } else { '\0' });
    list.extend(std::iter::repeat_n('\0', 17));
    let mut select = [0; 16];
    select[..5].copy_from_slice(&[0x15, 0x10, 0, 0, 24]);
    let answer = exchange(&mut stream, [0x01, 0xa0], [0; 8], [0, 0, 0, 2], &select, &list)?;
    ensure!(answer[..4] == [0x21, 0x80, 0, 0], "{target} refuses MODE SELECT");
    Ok(())
}

/// Sends a request with `data` in its PDU and gives the header of the answer, whose data is passed
/// over.
fn exchange(
    stream: &mut TcpStream,
    head: [u8; 2],
    lun: [u8; 8],
    number: [u8; 4],
    cdb: &[u8; 16],
    data: &str,
) -> Result<[u8; 48]> {
    // Lengths here are below 256.
    let bytes = [0, 0, 0, data.len() as u8];
    let mut pdu = vec![head[0], head[1], 0, 0];
    pdu.extend(bytes);
    pdu.extend(lun);
    pdu.extend(number);
    // In a login, these four bytes are the connection's number.
    pdu.extend(if head[0] == 0x43 { [0; 4] } else { bytes });
    pdu.extend(number);
    pdu.extend([0; 4]);
    pdu.extend(cdb);
    pdu.extend(data.as_bytes());
    pdu.resize(pdu.len().next_multiple_of(4), 0);
    stream.write_all(&pdu)?;
    let mut header = [0; 48];
    stream.read_exact(&mut header)?;
    let bytes = usize::from(u16::from_be_bytes([header[6], header[7]]));
    stream.read_exact(&mut vec![0; bytes.next_multiple_of(4)])?;
    Ok(header)
}
