//! Presence and answers to commands, in the status dialect.
#![no_main]

use fuzz::protocol::{Direction, Channel};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    let _ = fuzz::reading::check(Channel::Control(Direction::FromClient), payload);
});
