//! CRC32C as RFC 7143 §13.1 describes it, bit by bit from the polynomial.

/// 11EDC6F41h without its highest bit, reflected.
const POLYNOMIAL: u32 = 0x1edc_6f41_u32.reverse_bits();

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            let carry = remainder & 1 == 1;
            remainder >>= 1;
            if carry {
                remainder ^= POLYNOMIAL;
            }
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
};

/// The digest of `bytes` as it travels.
#[must_use]
pub fn digest(bytes: &[u8]) -> [u8; 4] {
    let mut remainder = u32::MAX;
    for byte in bytes {
        let index = (remainder as u8 ^ byte) as usize;
        remainder = remainder >> 8 ^ TABLE[index];
    }
    (!remainder).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::digest;

    /// RFC 7143 §B.4.
    #[test]
    fn the_standards_examples() {
        let up: Vec<u8> = (0..32).collect();
        let down: Vec<u8> = (0..32).rev().collect();
        assert_eq!(digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(digest(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        assert_eq!(digest(&up), [0x4e, 0x79, 0xdd, 0x46]);
        assert_eq!(digest(&down), [0x5c, 0xdb, 0x3f, 0x11]);
        let mut read = [0; 48];
        read[..2].copy_from_slice(&[0x01, 0xc0]);
        read[16] = 0x14;
        read[22] = 0x04;
        read[27] = 0x14;
        read[31] = 0x18;
        read[32] = 0x28;
        read[40] = 0x02;
        assert_eq!(digest(&read), [0x56, 0x3a, 0x96, 0xd9]);
    }
}
