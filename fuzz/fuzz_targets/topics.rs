//! Topic names, which alone say whose a message is.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|topic: &str| fuzz::topics::check(topic));
