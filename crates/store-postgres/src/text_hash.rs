//! The hash function `hashtextextended` of PostgreSQL.
//!
//! The recorder computes the hashes of search terms, because PostgreSQL needs more time for them than for
//! writing the row. Triggers compute the same hashes for other writers, and the API compares both with
//! the hashes of a filter. No crate has this variant of Bob Jenkins' hash function lookup3.

/// Returns the result of `hashtextextended(text, 0)` in PostgreSQL, for a collation in which equal texts
/// have equal bytes, on a server with little-endian byte order.
pub fn hash_text(text: &[u8]) -> i64 {
    // The texts of PostgreSQL are shorter than 1 GiB.
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    let start = 0x9e37_79b9_u32.wrapping_add(length).wrapping_add(3_923_095);
    let (mut a, mut b, mut c) = (start, start, start);
    let mut blocks = text.chunks_exact(12);
    for block in &mut blocks {
        a = a.wrapping_add(little_endian(&block[0..4]));
        b = b.wrapping_add(little_endian(&block[4..8]));
        c = c.wrapping_add(little_endian(&block[8..12]));
        (a, b, c) = mix(a, b, c);
    }
    let rest = blocks.remainder();
    let (first, rest) = rest.split_at(rest.len().min(4));
    let (second, third) = rest.split_at(rest.len().min(4));
    a = a.wrapping_add(little_endian(first));
    b = b.wrapping_add(little_endian(second));
    // The lowest byte of `c` is reserved for the length.
    c = c.wrapping_add(little_endian(third) << 8);
    (b, c) = finish(a, b, c);
    (u64::from(b) << 32 | u64::from(c)).cast_signed()
}

/// Returns up to four bytes as a number.
fn little_endian(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn mix(mut a: u32, mut b: u32, mut c: u32) -> (u32, u32, u32) {
    a = a.wrapping_sub(c) ^ c.rotate_left(4);
    c = c.wrapping_add(b);
    b = b.wrapping_sub(a) ^ a.rotate_left(6);
    a = a.wrapping_add(c);
    c = c.wrapping_sub(b) ^ b.rotate_left(8);
    b = b.wrapping_add(a);
    a = a.wrapping_sub(c) ^ c.rotate_left(16);
    c = c.wrapping_add(b);
    b = b.wrapping_sub(a) ^ a.rotate_left(19);
    a = a.wrapping_add(c);
    c = c.wrapping_sub(b) ^ b.rotate_left(4);
    b = b.wrapping_add(a);
    (a, b, c)
}

/// Returns the final values of `b` and `c`.
fn finish(mut a: u32, mut b: u32, mut c: u32) -> (u32, u32) {
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    c = (c ^ b).wrapping_sub(b.rotate_left(24));
    (b, c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_postgresql() {
        for (text, expected) in EXPECTED {
            assert_eq!(hash_text(text.as_bytes()), *expected, "{text}");
        }
    }

    /// Results of `SELECT hashtextextended(text, 0)`.
    const EXPECTED: &[(&str, i64)] = &[
        ("", -6_939_563_903_564_495_251),
        ("a", 3_591_986_179_850_072_241),
        ("abcd", -1_038_429_303_365_892_052),
        ("abcdefgh", -8_882_191_227_074_733_005),
        ("abcdefghi", -3_278_210_106_038_014_113),
        ("abcdefghijkl", -7_556_637_188_122_330_412),
        ("abcdefghijklmnop", 878_954_068_520_307_163),
        (
            "10001\u{1f}fact:fqdn\u{1f}host-1.example.com",
            1_628_303_036_865_885_262,
        ),
        ("äöü€", 8_576_247_913_275_681_445),
    ];
}
