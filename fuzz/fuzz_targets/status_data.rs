//! Decodes data messages of the status dialect.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::status;

fuzz_target!(|payload: &[u8]| {
    let _ = fuzz::decode::check_decoding(status::DATA_FROM_CLIENT, payload);
});
