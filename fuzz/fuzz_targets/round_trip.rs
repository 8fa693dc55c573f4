//! Encodes messages of the service and of the client side, and decodes each message on the other
//! side.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|bytes: &[u8]| -> Corpus {
    match fuzz::round_trip::check_round_trip(bytes) {
        Ok(()) => Corpus::Keep,
        Err(_) => Corpus::Reject,
    }
});
