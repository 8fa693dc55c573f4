//! Decodes data messages of the status dialect.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::{Channel, Direction};

fuzz_target!(|payload: &[u8]| {
    let _ = fuzz::decode::check_decoding(Channel::Data(Direction::FromClient), payload);
});
