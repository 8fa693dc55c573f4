//! Decodes messages of the handshake dialect, on the inbound topic and on the status topic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::handshake;

fuzz_target!(|payload: &[u8]| {
    let on_inbound_topic = fuzz::decode::check_decoding(handshake::FROM_CLIENT, payload);
    let on_status_topic = fuzz::decode::check_decoding(handshake::STATUS_FROM_CLIENT, payload);
    assert_eq!(on_inbound_topic, on_status_topic);
});
