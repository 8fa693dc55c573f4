//! Decodes control messages of the status dialect.
#![no_main]

use fuzz::protocol::{Channel, Direction};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    let _ = fuzz::decode::check_decoding(Channel::Control(Direction::FromClient), payload);
});
