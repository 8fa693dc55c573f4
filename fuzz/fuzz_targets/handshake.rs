//! All that is said in the handshake dialect, on either of its topics.
#![no_main]

use fuzz::protocol::{Direction, Channel};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    let on_in = fuzz::reading::check(Channel::Handshake(Direction::FromClient), payload);
    let on_status = fuzz::reading::check(Channel::State, payload);
    assert_eq!(on_in, on_status, "both topics speak one dialect");
});
