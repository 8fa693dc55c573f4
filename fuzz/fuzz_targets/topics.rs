//! Parses topic names and checks who may use them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|topic: &str| fuzz::topics::check(topic));
