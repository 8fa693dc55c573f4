//! What the service sends, and what clients send, read back at the other end.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|bytes: &[u8]| -> Corpus {
    match fuzz::round_trip::check(bytes) {
        Ok(()) => Corpus::Keep,
        Err(_) => Corpus::Reject,
    }
});
