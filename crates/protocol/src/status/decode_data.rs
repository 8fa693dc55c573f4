//! Decodes data messages of the status dialect from clients: responses of applications, and
//! heartbeats.

use crate::json_fields;
use crate::{ClientMessage, ClientResponse, Rejection};

/// Decodes a message that a client published on its topic `data/out`. A message with an empty
/// payload is a heartbeat. Every client publishes a heartbeat each time it connects.
///
/// # Errors
/// [`Rejection`] if the message can never be processed.
pub fn decode_data(payload: &[u8]) -> Result<ClientMessage, Rejection> {
    if payload.is_empty() {
        return Ok(ClientMessage::Heartbeat);
    }
    let (message_type, mut fields) =
        json_fields::parse_response_envelope(payload, &["response_to", "directive"])?;
    if message_type != "data" {
        return Ok(ClientMessage::Ignored);
    }
    Ok(ClientMessage::Response(ClientResponse::Data {
        response_to: json_fields::take_message_id(&mut fields, "response_to")?,
        directive: json_fields::take_short_text(&mut fields, "directive")?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::MessageId;
    use domain::RejectReason::{InvalidCharacters, InvalidJson, InvalidSchema};

    #[test]
    fn empty_payload_is_a_heartbeat() {
        assert_eq!(decode_data(b""), Ok(ClientMessage::Heartbeat));
    }

    #[test]
    fn response_is_decoded_with_the_message_id_and_the_directive() {
        let response = br#"{"type":"data","message_id":"a1","response_to":"m1","version":1,
            "sent":"2021-01-12T14:58:13+00:00","directive":"echo","metadata":{},"content":[1,2]}"#;
        assert_eq!(
            decode_data(response),
            Ok(ClientMessage::Response(ClientResponse::Data {
                response_to: MessageId::new("m1").ok(),
                directive: "echo".into()
            }))
        );
        // Every field except `type` may be absent, null or empty.
        for minimal in [
            &br#"{"type":"data"}"#[..],
            br#"{"type":"data","response_to":"","directive":null}"#,
        ] {
            let message = decode_data(minimal).unwrap();
            let ClientMessage::Response(ClientResponse::Data {
                response_to,
                directive,
            }) = message
            else {
                panic!("{message:?}");
            };
            assert_eq!((response_to, directive.as_str()), (None, ""));
        }
        assert_eq!(
            decode_data(br#"{"type":"news"}"#),
            Ok(ClientMessage::Ignored)
        );
    }

    #[test]
    fn deeply_nested_content_is_rejected() {
        let nested = |depth: usize| {
            let (open, close) = ("[".repeat(depth), "]".repeat(depth));
            format!(r#"{{"type":"data","content":{open}{close}}}"#)
        };
        assert!(decode_data(nested(100).as_bytes()).is_ok());
        let rejection = decode_data(nested(128).as_bytes()).unwrap_err();
        assert_eq!(rejection.reason, InvalidJson);
    }

    #[test]
    fn invalid_messages_are_rejected_with_a_reason() {
        for (payload, reason) in [
            (&b"{"[..], InvalidJson),
            (b"7", InvalidSchema),
            (br#"{"type":null}"#, InvalidSchema),
            (br#"{"type":"data","response_to":7}"#, InvalidSchema),
            (br#"{"type":"data","directive":["x"]}"#, InvalidSchema),
            (br#"{"type":"data","directive":{"x":[]}}"#, InvalidSchema),
            (br#"{"type":"data","directive":7.5}"#, InvalidSchema),
            (br#"[{"type":"data"}]"#, InvalidSchema),
            (b"\"data\"", InvalidSchema),
            (b"null", InvalidSchema),
            (br#"{"type":"data","content":[}"#, InvalidJson),
            (br#"{"type":"data"} x"#, InvalidJson),
            (br#"{"type":"data","content":1e400}"#, InvalidJson),
            (br#"{"type":"data","content":"\ud800"}"#, InvalidJson),
            (br#"{"type":"data","\ud800":1}"#, InvalidJson),
            (b"{\"type\":\"data\",\"content\":\"\xff\"}", InvalidJson),
            (
                br#"{"type":"data","directive":"\u0000"}"#,
                InvalidCharacters,
            ),
        ] {
            assert_eq!(decode_data(payload).unwrap_err().reason, reason);
        }
    }
}
