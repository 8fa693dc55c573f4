//! Reads the CONNECT packet, the first packet of a connection.
//!
//! The broker reads this packet before `mqtt5` does. `mqtt5` closes the connection without a reason if
//! it does not support the protocol, and does not report all rejected clients to the broker.

use std::io;

use mqtt5::packet::connect::ConnectPacket;
use mqtt5::packet::{FixedHeader as Mqtt5FixedHeader, MqttPacket as _, PacketType};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::packet_format::{CONNECT, FixedHeader, encode_packet};
use super::rejection::RejectionReason;
use service::{ByteBudget, ByteReservation};

/// Maximum size of a CONNECT packet.
const MAX_CONNECT_PACKET_BYTES: usize = 64 * 1024;
/// A CONNECT packet up to this size needs no reservation.
const MAX_SMALL_PACKET_BYTES: usize = 4096;
/// Maximum number of copies of a CONNECT packet that are in memory. `mqtt5` stores the last will in
/// its read buffer, in the connection, and in the session, and the broker keeps an offline message.
const CONNECT_PACKET_COPIES: usize = 4;
/// Number of bytes that are read from the network at once.
const READ_BYTES: usize = 1024;
/// First byte of a CONNECT packet. The flags must be 0.
const FIRST_BYTE_CONNECT: u8 = CONNECT << 4;

const PROTOCOL_NAME: &[u8] = b"MQTT";
/// Protocol name of MQTT 3.1.
const PROTOCOL_NAME_V31: &[u8] = b"MQIsdp";
/// Length of the protocol name and the protocol level of MQTT 3.1, with the length of the name.
const PROTOCOL_BYTES_V31: usize = 2 + PROTOCOL_NAME_V31.len() + 1;

/// The MQTT version that a client uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MqttVersion {
    V31,
    V311,
    V5,
}

/// A complete CONNECT packet.
pub(super) struct ReceivedConnect {
    /// The packet for `mqtt5`. The packet of an MQTT 3.1 client is changed to MQTT 3.1.1.
    pub packet: Vec<u8>,
    pub connect: ConnectPacket,
    pub version: MqttVersion,
    /// Bytes that the client has sent after the packet.
    pub following_bytes: Vec<u8>,
    /// Memory of a packet that is not small.
    pub reservation: Option<ByteReservation>,
}

/// The connection has no acceptable CONNECT packet.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// The connection failed, or the client closed it.
    Closed,
    Rejected {
        reason: RejectionReason,
        /// `None` if the version is unknown or not supported.
        version: Option<MqttVersion>,
    },
}

impl ConnectError {
    fn rejected(reason: RejectionReason, version: Option<MqttVersion>) -> Self {
        Self::Rejected { reason, version }
    }
}

impl From<io::Error> for ConnectError {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

/// Reads the CONNECT packet. Reserves the memory of a packet that is not small in `budget`.
pub(super) async fn read_connect_packet(
    stream: &mut (impl AsyncRead + Unpin),
    budget: &ByteBudget,
) -> Result<ReceivedConnect, ConnectError> {
    let malformed = || ConnectError::rejected(RejectionReason::MalformedConnect, None);
    let mut input = Vec::new();
    let header = loop {
        match FixedHeader::parse(&input) {
            Ok(Some(header)) => break header,
            Ok(None) => read_more(stream, &mut input).await?,
            Err(_) => return Err(malformed()),
        }
    };
    if header.packet_type() != CONNECT {
        let reason = RejectionReason::NoConnectPacket;
        return Err(ConnectError::rejected(reason, None));
    }
    if header.first_byte != FIRST_BYTE_CONNECT {
        return Err(malformed());
    }
    let packet_len = header.packet_len();
    let version_end = packet_len.min(header.header_len + PROTOCOL_BYTES_V31);
    while input.len() < version_end {
        read_more(stream, &mut input).await?;
    }
    let version = parse_version(&input[header.header_len..version_end])
        .map_err(|reason| ConnectError::rejected(reason, None))?;
    if packet_len > MAX_CONNECT_PACKET_BYTES {
        let reason = RejectionReason::PacketTooLarge;
        return Err(ConnectError::rejected(reason, Some(version)));
    }
    let mut reservation = None;
    if packet_len > MAX_SMALL_PACKET_BYTES {
        reservation = budget.try_reserve(packet_len * CONNECT_PACKET_COPIES);
        if reservation.is_none() {
            let reason = RejectionReason::TooManyLargeConnectPackets;
            return Err(ConnectError::rejected(reason, Some(version)));
        }
    }
    while input.len() < packet_len {
        read_more(stream, &mut input).await?;
    }
    let following_bytes = input.split_off(packet_len);
    let packet = match version {
        MqttVersion::V31 => to_v311(&input[header.header_len..]),
        MqttVersion::V311 | MqttVersion::V5 => input,
    };
    let connect = decode(&packet)
        .ok_or_else(|| ConnectError::rejected(RejectionReason::MalformedConnect, Some(version)))?;
    Ok(ReceivedConnect {
        packet,
        connect,
        version,
        following_bytes,
        reservation,
    })
}

async fn read_more(
    stream: &mut (impl AsyncRead + Unpin),
    input: &mut Vec<u8>,
) -> Result<(), ConnectError> {
    let mut chunk = [0; READ_BYTES];
    let count = stream.read(&mut chunk).await?;
    if count == 0 {
        return Err(ConnectError::Closed);
    }
    input.extend_from_slice(&chunk[..count]);
    Ok(())
}

/// Parses the protocol name and the protocol level at the start of the body.
fn parse_version(body: &[u8]) -> Result<MqttVersion, RejectionReason> {
    let malformed = RejectionReason::MalformedConnect;
    let (name_len, rest) = body.split_first_chunk::<2>().ok_or(malformed)?;
    let name_len = usize::from(u16::from_be_bytes(*name_len));
    let (name, rest) = rest.split_at_checked(name_len).ok_or(malformed)?;
    let level = *rest.first().ok_or(malformed)?;
    match (name, level) {
        (PROTOCOL_NAME_V31, 3) => Ok(MqttVersion::V31),
        (PROTOCOL_NAME, 4) => Ok(MqttVersion::V311),
        (PROTOCOL_NAME, 5) => Ok(MqttVersion::V5),
        (PROTOCOL_NAME | PROTOCOL_NAME_V31, _) => Err(RejectionReason::UnsupportedProtocolVersion),
        _ => Err(malformed),
    }
}

/// Changes the packet of an MQTT 3.1 client to MQTT 3.1.1, which differs only in the protocol name and
/// the protocol level. `mqtt5` does not support MQTT 3.1.
fn to_v311(body: &[u8]) -> Vec<u8> {
    let mut v311_body = vec![0, 4];
    v311_body.extend_from_slice(PROTOCOL_NAME);
    v311_body.push(4);
    v311_body.extend_from_slice(&body[PROTOCOL_BYTES_V31..]);
    encode_packet(FIRST_BYTE_CONNECT, &v311_body)
}

fn decode(packet: &[u8]) -> Option<ConnectPacket> {
    let header = FixedHeader::parse(packet).ok()??;
    let body_len = u32::try_from(header.body_len).ok()?;
    let mqtt5_header = Mqtt5FixedHeader::new(PacketType::Connect, 0, body_len);
    ConnectPacket::decode_body(&mut &packet[header.header_len..], &mqtt5_header).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET_BYTES: usize = 500_000;

    /// Returns a CONNECT packet with a client id, and a keep-alive interval of 30 seconds.
    fn connect_packet(protocol_name: &str, level: u8, client_id: &str) -> Vec<u8> {
        let mut body = string(protocol_name);
        body.extend([level, 2, 0, 30]);
        if level >= 5 {
            body.push(0);
        }
        body.extend(string(client_id));
        encode_packet(FIRST_BYTE_CONNECT, &body)
    }

    fn string(text: &str) -> Vec<u8> {
        let len = u16::try_from(text.len()).unwrap();
        [&len.to_be_bytes()[..], text.as_bytes()].concat()
    }

    async fn read(mut bytes: &[u8]) -> Result<ReceivedConnect, ConnectError> {
        read_connect_packet(&mut bytes, &ByteBudget::new(BUDGET_BYTES)).await
    }

    async fn rejection(bytes: &[u8]) -> (RejectionReason, Option<MqttVersion>) {
        match read(bytes).await {
            Err(ConnectError::Rejected { reason, version }) => (reason, version),
            Err(ConnectError::Closed) => panic!("the packet is incomplete"),
            Ok(_) => panic!("the packet was accepted"),
        }
    }

    #[tokio::test]
    async fn all_versions_are_accepted_and_mqtt_3_1_becomes_mqtt_3_1_1() {
        let v311_packet = connect_packet("MQTT", 4, "me");
        for (packet, version, expected) in [
            (
                connect_packet("MQIsdp", 3, "me"),
                MqttVersion::V31,
                v311_packet.clone(),
            ),
            (v311_packet.clone(), MqttVersion::V311, v311_packet.clone()),
            (
                connect_packet("MQTT", 5, "me"),
                MqttVersion::V5,
                connect_packet("MQTT", 5, "me"),
            ),
        ] {
            let received = read(&[&packet[..], b"next"].concat()).await.unwrap();
            assert_eq!(received.version, version);
            assert_eq!(received.packet, expected);
            assert_eq!(received.connect.client_id, "me");
            assert_eq!(received.connect.keep_alive, 30);
            assert_eq!(received.following_bytes, b"next");
            assert!(received.reservation.is_none());
        }
    }

    #[tokio::test]
    async fn unsupported_protocol_levels_are_rejected_even_if_the_rest_is_unknown() {
        for (name, level) in [("MQTT", 3), ("MQTT", 6), ("MQTT", 132), ("MQIsdp", 4)] {
            let mut body = string(name);
            body.extend([level, 0xff, 0xff]);
            let packet = encode_packet(FIRST_BYTE_CONNECT, &body);
            let expected = (RejectionReason::UnsupportedProtocolVersion, None);
            assert_eq!(rejection(&packet).await, expected, "{name} {level}");
        }
    }

    #[tokio::test]
    async fn packets_that_are_not_a_valid_connect_packet_are_rejected() {
        let malformed = RejectionReason::MalformedConnect;
        let truncated = encode_packet(FIRST_BYTE_CONNECT, &[0, 4, b'M', b'Q', b'T', b'T', 4, 2]);
        for (packet, expected) in [
            (vec![0xc0, 0], (RejectionReason::NoConnectPacket, None)),
            (connect_packet("HTTP", 4, "me"), (malformed, None)),
            (vec![0x11, 2, 0, 4], (malformed, None)),
            (vec![0x10, 0xff, 0xff, 0xff, 0xff], (malformed, None)),
            (vec![0x10, 2, 0, 9], (malformed, None)),
            (truncated, (malformed, Some(MqttVersion::V311))),
        ] {
            assert_eq!(rejection(&packet).await, expected, "{packet:?}");
        }
        assert!(matches!(
            read(&[0x10, 9, 0]).await,
            Err(ConnectError::Closed)
        ));
    }

    #[tokio::test]
    async fn packet_above_the_limit_is_rejected_when_the_version_is_known() {
        let mut packet = connect_packet("MQTT", 5, &"x".repeat(65_535));
        packet.truncate(20);
        let expected = (RejectionReason::PacketTooLarge, Some(MqttVersion::V5));
        assert_eq!(rejection(&packet).await, expected);
    }

    #[tokio::test]
    async fn large_packets_reserve_memory_before_they_are_complete() {
        let budget = ByteBudget::new(BUDGET_BYTES);
        let packet = connect_packet("MQTT", 4, &"x".repeat(60_000));
        let first = read_connect_packet(&mut &packet[..], &budget)
            .await
            .unwrap();
        assert_eq!(budget.used(), packet.len() * CONNECT_PACKET_COPIES);
        let _second = read_connect_packet(&mut &packet[..], &budget).await;
        let third = read_connect_packet(&mut &packet[..50], &budget).await;
        assert!(matches!(
            third,
            Err(ConnectError::Rejected {
                reason: RejectionReason::TooManyLargeConnectPackets,
                version: Some(MqttVersion::V311),
            })
        ));
        drop(first);
        let third = read_connect_packet(&mut &packet[..], &budget).await;
        assert!(third.is_ok());
    }
}
