//! Parses topic names and checks which clients may use the topics.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|topic: &str| fuzz::topics::check_topic(topic));
