//! Encodes messages of both sides, and decodes them on the other side.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|bytes: &[u8]| -> Corpus {
    match fuzz::round_trip::check(bytes) {
        Ok(()) => Corpus::Keep,
        Err(_) => Corpus::Reject,
    }
});
