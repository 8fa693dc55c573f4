//! The CONNACK packet that rejects a client, in the format of the client's MQTT version.

use mqtt5::Properties;
use mqtt5::packet::connect::ConnectPacket;
use mqtt5::types::ReasonCode;

use super::connect_packet::MqttVersion;
use super::packet_format::encode_packet;
use super::rejection::RejectionReason;

const FIRST_BYTE_CONNACK: u8 = 0x20;
/// Property identifier of the reason string.
const REASON_STRING: u8 = 0x1f;

/// Return codes of MQTT 3.1 and 3.1.1.
const UNACCEPTABLE_PROTOCOL_VERSION: u8 = 1;
const IDENTIFIER_REJECTED: u8 = 2;
const SERVER_UNAVAILABLE: u8 = 3;
const NOT_AUTHORIZED: u8 = 5;

/// Returns the packet that rejects a client. If the version is not supported, the packet has the
/// format of MQTT 3.1.1. Returns `None` if the version has no code for the reason: the connection is
/// then closed without a CONNACK.
pub(super) fn encode_rejection(
    reason: RejectionReason,
    version: Option<MqttVersion>,
    connect: Option<&ConnectPacket>,
) -> Option<Vec<u8>> {
    if version != Some(MqttVersion::V5) {
        let code = v3_return_code(reason)?;
        return Some(encode_packet(FIRST_BYTE_CONNACK, &[0, code]));
    }
    let code = u8::from(v5_reason_code(reason)?);
    let mut packet = encode_packet(FIRST_BYTE_CONNACK, &[0, code, 0]);
    let properties = connect.map(|connect| &connect.properties);
    let wants_reason_string = properties
        .and_then(Properties::get_request_problem_information)
        .unwrap_or(true);
    if let Some(text) = reason.explanation()
        && wants_reason_string
    {
        let with_text = encode_packet(FIRST_BYTE_CONNACK, &body_with_reason_string(code, text));
        let max_len = properties.and_then(Properties::get_maximum_packet_size);
        if max_len.is_none_or(|max_len| with_text.len() <= max_len as usize) {
            packet = with_text;
        }
    }
    Some(packet)
}

fn body_with_reason_string(code: u8, text: &str) -> Vec<u8> {
    // The texts have less than 125 bytes, so each length fits into its field.
    let [text_len, ..] = text.len().to_le_bytes();
    let mut body = vec![0, code, text_len + 3, REASON_STRING, 0, text_len];
    body.extend_from_slice(text.as_bytes());
    body
}

/// Returns the return code of MQTT 3.1 and 3.1.1.
fn v3_return_code(reason: RejectionReason) -> Option<u8> {
    match reason {
        RejectionReason::UnsupportedProtocolVersion => Some(UNACCEPTABLE_PROTOCOL_VERSION),
        RejectionReason::InvalidClientId => Some(IDENTIFIER_REJECTED),
        RejectionReason::ShuttingDown
        | RejectionReason::RateLimited
        | RejectionReason::Overloaded
        | RejectionReason::TooManyLargeConnectPackets => Some(SERVER_UNAVAILABLE),
        RejectionReason::CnMismatch | RejectionReason::ForbiddenWillTopic => Some(NOT_AUTHORIZED),
        _ => None,
    }
}

/// Returns the reason code of MQTT 5. Only some reason codes are allowed in a CONNACK packet. For
/// example, "server shutting down" is not.
fn v5_reason_code(reason: RejectionReason) -> Option<ReasonCode> {
    match reason {
        RejectionReason::MalformedConnect => Some(ReasonCode::MalformedPacket),
        RejectionReason::InvalidClientId => Some(ReasonCode::ClientIdentifierNotValid),
        RejectionReason::ShuttingDown => Some(ReasonCode::ServerUnavailable),
        RejectionReason::RateLimited => Some(ReasonCode::ConnectionRateExceeded),
        RejectionReason::Overloaded | RejectionReason::TooManyLargeConnectPackets => {
            Some(ReasonCode::ServerBusy)
        }
        RejectionReason::CnMismatch | RejectionReason::ForbiddenWillTopic => {
            Some(ReasonCode::NotAuthorized)
        }
        RejectionReason::PacketTooLarge => Some(ReasonCode::PacketTooLarge),
        RejectionReason::UnsupportedAuthentication => Some(ReasonCode::BadAuthenticationMethod),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use mqtt5::packet::connack::ConnAckPacket;
    use mqtt5::packet::{FixedHeader, MqttPacket as _, PacketType};
    use mqtt5::types::ConnectOptions;
    use mqtt5::{PropertyId, PropertyValue};

    use super::*;

    const V5: Option<MqttVersion> = Some(MqttVersion::V5);

    fn v5_connect() -> ConnectPacket {
        ConnectPacket::new(ConnectOptions::new("me").protocol_options)
    }

    #[test]
    fn each_version_gets_its_own_code() {
        for (reason, v3_code, v5_code) in [
            (RejectionReason::InvalidClientId, Some(2), Some(0x85)),
            (RejectionReason::CnMismatch, Some(5), Some(0x87)),
            (RejectionReason::ForbiddenWillTopic, Some(5), Some(0x87)),
            (RejectionReason::ShuttingDown, Some(3), Some(0x88)),
            (RejectionReason::Overloaded, Some(3), Some(0x89)),
            (RejectionReason::RateLimited, Some(3), Some(0x9f)),
            (RejectionReason::PacketTooLarge, None, Some(0x95)),
            (RejectionReason::MalformedConnect, None, Some(0x81)),
            (RejectionReason::UnsupportedAuthentication, None, Some(0x8c)),
            (RejectionReason::NoConnectPacket, None, None),
        ] {
            for version in [None, Some(MqttVersion::V31), Some(MqttVersion::V311)] {
                let expected = v3_code.map(|code| vec![0x20, 2, 0, code]);
                assert_eq!(encode_rejection(reason, version, None), expected);
            }
            let packet = encode_rejection(reason, V5, None);
            assert_eq!(packet.map(|packet| packet[3]), v5_code, "{reason:?}");
        }
        let unsupported = RejectionReason::UnsupportedProtocolVersion;
        let packet = encode_rejection(unsupported, None, None);
        assert_eq!(packet.unwrap(), [0x20, 2, 0, 1]);
    }

    #[test]
    fn mqtt_5_client_gets_the_reason_as_text() {
        let reason = RejectionReason::CnMismatch;
        let packet = encode_rejection(reason, V5, Some(&v5_connect())).unwrap();
        let header = FixedHeader::new(PacketType::ConnAck, 0, u32::from(packet[1]));
        let connack = ConnAckPacket::decode_body(&mut &packet[2..], &header).unwrap();
        assert_eq!(connack.reason_code, ReasonCode::NotAuthorized);
        let text = reason.explanation().unwrap();
        assert_eq!(
            connack.properties.get(PropertyId::ReasonString),
            Some(&PropertyValue::Utf8String(text.to_owned()))
        );
    }

    #[test]
    fn text_is_omitted_if_the_client_does_not_want_it_or_accepts_only_small_packets() {
        let mut without_problem_information = v5_connect();
        without_problem_information
            .properties
            .set_request_problem_information(false);
        let mut small = v5_connect();
        small.properties.set_maximum_packet_size(20);
        for connect in [without_problem_information, small] {
            let packet = encode_rejection(RejectionReason::CnMismatch, V5, Some(&connect));
            assert_eq!(packet.unwrap(), [0x20, 3, 0, 0x87, 0]);
        }
    }
}
