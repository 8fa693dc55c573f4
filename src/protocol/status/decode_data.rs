//! Data messages from clients: answers of applications, and the sign of life.

use crate::protocol::json_fields;
use crate::protocol::{ANSWER_MAX_BYTES, ClientMessage, ClientResponse, Rejection};

/// Reads a message of `data/out`. An empty one is what every client publishes at every connect.
///
/// # Errors
/// [`Rejection`] when it can never be processed.
pub fn decode_data(payload: &[u8]) -> Result<ClientMessage, Rejection> {
    if payload.is_empty() {
        return Ok(ClientMessage::Heartbeat);
    }
    let (kind, mut fields) = json_fields::envelope(payload, ANSWER_MAX_BYTES)?;
    if kind != "data" {
        return Ok(ClientMessage::Ignored);
    }
    Ok(ClientMessage::Response(ClientResponse::Data {
        to: json_fields::message_id(&mut fields, "response_to")?,
        directive: json_fields::short_text(&mut fields, "directive")?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::MessageId;

    #[test]
    fn an_empty_payload_is_a_sign_of_life() {
        assert_eq!(decode_data(b""), Ok(ClientMessage::Heartbeat));
    }

    #[test]
    fn an_answer_names_the_message_that_it_answers() {
        let answer = br#"{"type":"data","message_id":"a1","response_to":"m1","version":1,
            "sent":"2021-01-12T14:58:13+00:00","directive":"echo","metadata":{},"content":[1,2]}"#;
        assert_eq!(
            decode_data(answer),
            Ok(ClientMessage::Response(ClientResponse::Data {
                to: MessageId::new("m1").ok(),
                directive: "echo".into()
            }))
        );
        // Anything may be absent, null or empty.
        for bare in [
            &br#"{"type":"data"}"#[..],
            br#"{"type":"data","response_to":"","directive":null}"#,
        ] {
            let said = decode_data(bare).unwrap();
            let ClientMessage::Response(ClientResponse::Data { to, directive }) = said else {
                panic!("{said:?}");
            };
            assert_eq!((to, directive.as_str()), (None, ""));
        }
        assert_eq!(
            decode_data(br#"{"type":"news"}"#),
            Ok(ClientMessage::Ignored)
        );
    }

    #[test]
    fn what_can_never_be_processed_is_rejected_with_a_reason() {
        let large = vec![b' '; ANSWER_MAX_BYTES + 1];
        for (payload, reason) in [
            (&b"{"[..], "not_json"),
            (b"7", "wrong_shape"),
            (br#"{"type":null}"#, "wrong_shape"),
            (br#"{"type":"data","response_to":7}"#, "wrong_shape"),
            (br#"{"type":"data","directive":["x"]}"#, "wrong_shape"),
            (br#"{"type":"data","directive":"\u0000"}"#, "characters"),
            (&large, "too_large"),
        ] {
            assert_eq!(decode_data(payload).unwrap_err().reason, reason);
        }
    }
}
