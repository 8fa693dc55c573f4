//! The parts of the MQTT packet format that the broker reads before `mqtt5` does.

use std::io;

/// Packet type of CONNECT.
pub(super) const CONNECT: u8 = 1;
/// Packet type of PUBLISH.
pub(super) const PUBLISH: u8 = 3;
/// Packet type of SUBSCRIBE.
pub(super) const SUBSCRIBE: u8 = 8;
/// Packet type of UNSUBSCRIBE.
pub(super) const UNSUBSCRIBE: u8 = 10;
/// Packet type of PINGREQ.
pub(super) const PINGREQ: u8 = 12;

/// Maximum length of the field that contains the length of a packet.
const MAX_LENGTH_FIELD_BYTES: usize = 4;

/// The fixed header, with which each packet begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FixedHeader {
    pub first_byte: u8,
    /// Length of the fixed header itself in bytes.
    pub header_len: usize,
    /// Length of the rest of the packet in bytes.
    pub body_len: usize,
}

impl FixedHeader {
    /// Parses the start of a packet. Returns `None` if the fixed header is incomplete.
    ///
    /// # Errors
    /// When the length is malformed.
    pub fn parse(bytes: &[u8]) -> io::Result<Option<Self>> {
        let Some((&first_byte, rest)) = bytes.split_first() else {
            return Ok(None);
        };
        let Some((body_len, length_field_len)) = parse_variable_length(rest)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            first_byte,
            header_len: 1 + length_field_len,
            body_len,
        }))
    }

    pub fn packet_type(&self) -> u8 {
        self.first_byte >> 4
    }

    /// Returns the quality of service of a PUBLISH packet.
    pub fn qos(&self) -> u8 {
        publish_qos(self.first_byte)
    }

    /// Returns the length of the complete packet in bytes.
    pub fn packet_len(&self) -> usize {
        self.header_len + self.body_len
    }
}

/// Returns the offset of the payload in the body of a PUBLISH packet. MQTT 5 packets have
/// properties before the payload.
///
/// # Errors
/// When the body is malformed.
pub(super) fn publish_payload_offset(
    first_byte: u8,
    body: &[u8],
    uses_mqtt_v5: bool,
) -> io::Result<usize> {
    let topic_len = body.first_chunk::<2>().ok_or_else(malformed)?;
    let mut offset = 2 + usize::from(u16::from_be_bytes(*topic_len));
    if publish_qos(first_byte) > 0 {
        // The packet identifier.
        offset += 2;
    }
    if uses_mqtt_v5 {
        let properties = body.get(offset..).ok_or_else(malformed)?;
        let (properties_len, length_field_len) =
            parse_variable_length(properties)?.ok_or_else(malformed)?;
        offset += length_field_len + properties_len;
    }
    if offset > body.len() {
        return Err(malformed());
    }
    Ok(offset)
}

fn publish_qos(first_byte: u8) -> u8 {
    (first_byte >> 1) & 0b11
}

/// Encodes a packet.
pub(super) fn encode_packet(first_byte: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(1 + MAX_LENGTH_FIELD_BYTES + body.len());
    packet.push(first_byte);
    let mut length = body.len();
    loop {
        let [low_byte, ..] = length.to_le_bytes();
        length >>= 7;
        if length == 0 {
            packet.push(low_byte & 0x7f);
            break;
        }
        packet.push(low_byte | 0x80);
    }
    packet.extend_from_slice(body);
    packet
}

/// Parses a variable byte integer. Returns the value and the number of bytes that encode it.
/// Returns `None` if the integer is incomplete.
fn parse_variable_length(bytes: &[u8]) -> io::Result<Option<(usize, usize)>> {
    let mut value = 0;
    for (index, byte) in bytes.iter().take(MAX_LENGTH_FIELD_BYTES).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    if bytes.len() >= MAX_LENGTH_FIELD_BYTES {
        return Err(malformed());
    }
    Ok(None)
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed MQTT packet")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_header_is_parsed_when_it_is_complete() {
        assert_eq!(FixedHeader::parse(&[]).unwrap(), None);
        assert_eq!(FixedHeader::parse(&[0x30]).unwrap(), None);
        assert_eq!(FixedHeader::parse(&[0x30, 0xff, 0xff]).unwrap(), None);
        let header = FixedHeader::parse(&[0x32, 0x80, 0x80, 0x40, 7])
            .unwrap()
            .unwrap();
        assert_eq!(header.packet_type(), PUBLISH);
        assert_eq!((header.header_len, header.body_len), (4, 1024 * 1024));
        assert!(FixedHeader::parse(&[0x30, 0xff, 0xff, 0xff, 0xff]).is_err());
    }

    #[test]
    fn encoded_packet_has_the_parsed_length() {
        for body_len in [0, 127, 128, 16_383, 16_384, 100_000] {
            let packet = encode_packet(0x10, &vec![0; body_len]);
            let header = FixedHeader::parse(&packet).unwrap().unwrap();
            assert_eq!(header.packet_type(), CONNECT);
            assert_eq!(header.body_len, body_len);
            assert_eq!(header.packet_len(), packet.len());
        }
    }

    #[test]
    fn payload_offset_depends_on_qos_and_mqtt_version() {
        // The topic "ab", the packet identifier 1, and properties of three bytes.
        let body = [0, 2, b'a', b'b', 0, 1, 3, 0x23, 0, 1, b'x'];
        assert_eq!(publish_payload_offset(0x32, &body, true).unwrap(), 10);
        assert_eq!(publish_payload_offset(0x32, &body, false).unwrap(), 6);
        assert_eq!(publish_payload_offset(0x30, &body, false).unwrap(), 4);
    }

    #[test]
    fn payload_offset_outside_the_body_is_an_error() {
        for body in [&[][..], &[0], &[0, 9, b'a'], &[0, 1, b'a', 0, 1]] {
            assert!(
                publish_payload_offset(0x32, body, true).is_err(),
                "{body:?}"
            );
        }
        let properties_too_long = [0, 1, b'a', 0, 1, 5, 0];
        assert!(publish_payload_offset(0x32, &properties_too_long, true).is_err());
        assert!(publish_payload_offset(0x32, &[0, 1, b'a', 0], false).is_err());
    }
}
