//! Replaces the random numbers of the operating system by numbers that depend only on the seed.
//!
//! The hash maps of the standard library and `tokio::select!` use random numbers, which the standard
//! library requests with `getrandom`. This program defines a function with that name, and the linker
//! prefers it to the function of the C library. The standard library permits this replacement. Without
//! it, two runs of a schedule would differ in the order of the branches of `select!`.
#![expect(
    unsafe_code,
    reason = "a function of the C library can only be replaced by an exported function with a pointer"
)]

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

static SEED: AtomicU64 = AtomicU64::new(0);

/// Sets the seed. Call this function before the first hash map is created.
pub fn set_seed(seed: u64) {
    SEED.store(seed, Ordering::Relaxed);
}

/// Fills the buffer with the same bytes in each call, so that the result does not depend on the order
/// in which threads call this function. Has the signature of the function in the C library.
///
/// # Safety
/// `buffer` must be valid for writes of `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, _flags: c_uint) -> isize {
    // SAFETY: the caller passes a buffer of this length.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    let mut random = fastrand::Rng::with_seed(SEED.load(Ordering::Relaxed));
    random.fill(buffer);
    isize::try_from(length).unwrap_or(isize::MAX)
}
