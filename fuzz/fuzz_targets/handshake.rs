//! Decodes messages of the handshake dialect, on the inbound topic and on the status topic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::{Channel, Direction};

fuzz_target!(|payload: &[u8]| {
    let on_inbound_topic =
        fuzz::decode::check_decoding(Channel::Handshake(Direction::FromClient), payload);
    let on_status_topic = fuzz::decode::check_decoding(Channel::HandshakeStatus, payload);
    assert_eq!(on_inbound_topic, on_status_topic);
});
