//! Proves that a dialect consists of one folder and one line in the list of dialects. The folder is
//! `line`. The tests of `pipeline` and `delivery` use the same folder.

mod line;

use bytes::Bytes;
use serde_json::json;
use uuid::Uuid;

use domain::{ClientId, OutgoingMessage, RejectReason, Timestamp};
use line::LineDialect;
use protocol::handshake::HandshakeDialect;
use protocol::status::StatusDialect;
use protocol::{
    ClientMessage, ClientResponse, Command, Dialect, DialectSettings, InboundMessage, Rejection,
    TopicScheme,
};

const DIALECTS: &[&dyn Dialect] = &[
    &StatusDialect,
    &HandshakeDialect,
    &LineDialect, // The line that adds the dialect.
];

fn topic_scheme() -> TopicScheme {
    TopicScheme::with_dialects(DIALECTS, vec!["p".into()], &DialectSettings::default())
}

fn client(id: &str) -> ClientId {
    ClientId::new(id).unwrap()
}

/// Parses the topic and decodes the message.
fn decode(topic: &str, payload: impl Into<Bytes>) -> Result<ClientMessage, Rejection> {
    let channel = topic_scheme().parse(topic).unwrap().channel;
    let message = InboundMessage {
        topic: topic.to_owned(),
        payload: payload.into(),
        retained: false,
        is_operator_replay: false,
        is_last_will: None,
        is_takeover: false,
        received_at: Timestamp::UNIX_EPOCH,
        ingest_stamp: None,
        truncated_from: None,
    };
    protocol::decode(channel, &message)
}

#[test]
fn topics_are_parsed_and_formatted() {
    for (name, channel) in [
        ("p/me/line/out", line::FROM_CLIENT),
        ("p/me/line/in", line::TO_CLIENT),
    ] {
        let topic = topic_scheme().parse(name).unwrap();
        assert_eq!((&topic.client, topic.channel), (&client("me"), channel));
        assert_eq!(topic.channel.dialect().name(), line::NAME);
        assert_eq!(topic_scheme().topic_name(&topic).as_deref(), Some(name));
    }
    let without_line = TopicScheme::new(vec!["p".into()], &DialectSettings::default());
    assert_eq!(without_line.parse("p/me/line/out"), None);
}

#[test]
fn service_subscribes_to_the_topics_of_all_dialects() {
    let filters = topic_scheme().subscription_filters();
    let names: Vec<&str> = filters.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(
        names,
        ["p/+/control/out", "p/+/data/out", "p/in/+", "p/+/line/out"]
    );
}

#[test]
fn client_may_use_only_its_own_topics() {
    let (topics, me) = (topic_scheme(), client("me"));
    assert!(topics.may_publish(&me, "p/me/line/out"));
    assert!(topics.may_subscribe(&me, "p/me/line/in"));
    assert!(!topics.may_publish(&me, "p/me/line/in"));
    assert!(!topics.may_subscribe(&me, "p/me/line/out"));
    assert!(!topics.may_publish(&me, "p/you/line/out"));
    assert!(!topics.may_subscribe(&me, "p/+/line/in"));
}

#[test]
fn messages_of_each_dialect_are_decoded() {
    let Ok(ClientMessage::Online(online)) = decode("p/me/line/out", "online m1 a.example") else {
        panic!("not an online message");
    };
    assert_eq!(online.message_id.unwrap().as_str(), "m1");
    assert_eq!(online.info.canonical_facts, json!({"fqdn": "a.example"}));
    let offline = Ok(ClientMessage::Offline { sent: None });
    assert_eq!(decode("p/me/line/out", "offline"), offline);
    assert_eq!(decode("p/in/me", r#"{"type":"offline"}"#), offline);
    assert!(matches!(
        decode("p/me/line/out", "done m2 echo"),
        Ok(ClientMessage::Response(ClientResponse::Data { directive, .. })) if directive == "echo"
    ));
}

#[test]
fn invalid_and_large_messages_and_messages_to_clients_are_rejected() {
    let reason = |topic, payload: String| decode(topic, payload).unwrap_err().reason;
    let large_line = "x".repeat(protocol::MAX_PRESENCE_BYTES + 1);
    for (topic, payload, expected) in [
        ("p/me/line/out", "nonsense", RejectReason::InvalidSchema),
        ("p/me/line/out", &large_line, RejectReason::PayloadTooLarge),
        ("p/me/line/in", "offline", RejectReason::UnknownTopic),
    ] {
        assert_eq!(reason(topic, payload.to_owned()), expected);
    }
}

#[test]
fn dialect_is_found_by_its_name_and_encodes_messages_and_commands() {
    let dialect = topic_scheme()
        .find_dialect(&"line".to_owned().into())
        .unwrap();
    let message = dialect.encode_message(&OutgoingMessage {
        message_id: Uuid::nil(),
        sent: Timestamp::UNIX_EPOCH,
        directive: "echo".into(),
        metadata: json!(null),
        payload: json!([1]),
    });
    assert_eq!(message.channel, line::TO_CLIENT);
    assert_eq!(
        message.payload,
        format!("run {} echo [1]", Uuid::nil()).into_bytes()
    );
    assert_eq!(dialect.response_channel(message.channel), line::FROM_CLIENT);

    let encode = |command| dialect.encode_command(&command, Uuid::nil(), Timestamp::UNIX_EPOCH);
    assert!(encode(Command::Ping).is_some());
    let reconnect = Command::Reconnect {
        delay_seconds: 1,
        message: String::new(),
    };
    assert_eq!(encode(reconnect), None);
    assert!(protocol::find_dialect(&line::NAME).is_none());
}
