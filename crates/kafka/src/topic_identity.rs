//! Reads the id of a topic.
//!
//! Kafka assigns a new id to each topic that it creates. If a topic is deleted and created again
//! with the same name, its id is different. Offsets of the old topic are not valid in the new one.
//! The safe interface of `rdkafka` does not contain topic ids, so this module calls librdkafka
//! directly (docs/decisions/014-topic-identity.md).
#![expect(
    unsafe_code,
    reason = "the safe interface of rdkafka does not contain topic ids"
)]

use std::ffi::{CStr, CString, c_int};
use std::fmt;
use std::ptr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rdkafka::ClientContext;
use rdkafka::bindings as sys;
use rdkafka::client::Client;
use rdkafka::error::RDKafkaErrorCode;

/// The id that clients receive from a broker without topic ids (before Kafka 2.8).
const ZERO_ID: &str = "AAAAAAAAAAAAAAAAAAAAAA";

/// The id of a topic, in the base64 format that Kafka's own tools print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicId(String);

impl fmt::Display for TopicId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl TopicId {
    /// Returns the first 64 bits of the id. Kafka creates topic ids at random, so the bits identify
    /// the topic. Returns `None` if the id does not have the expected format.
    pub fn first_bits(&self) -> Option<i64> {
        let bytes = URL_SAFE_NO_PAD.decode(&self.0).ok()?;
        let first_bytes = bytes.first_chunk::<8>()?;
        Some(i64::from_be_bytes(*first_bytes))
    }
}

impl From<&str> for TopicId {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// Owns an object of librdkafka, and destroys it when the value is dropped.
struct Owned<T> {
    object: *mut T,
    destroy: unsafe extern "C" fn(*mut T),
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: `object` was created by the librdkafka function that belongs to `destroy`, is
        // not null, and is destroyed only here.
        unsafe { (self.destroy)(self.object) }
    }
}

/// Returns an error if the object is null.
fn own<T>(object: *mut T, destroy: unsafe extern "C" fn(*mut T)) -> Result<Owned<T>, String> {
    if object.is_null() {
        return Err("Kafka did not respond in time".to_owned());
    }
    Ok(Owned { object, destroy })
}

/// Requests the id of a topic from the cluster. Returns `None` if the cluster does not support topic
/// ids. Blocks the thread for at most `timeout`.
///
/// # Errors
/// When the cluster does not respond in time, or the topic does not exist.
pub(crate) fn fetch_topic_id<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    timeout: Duration,
) -> Result<Option<TopicId>, String> {
    let topic_name = CString::new(topic).map_err(|error| error.to_string())?;
    let timeout_ms = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
    let mut names = [topic_name.as_ptr()];
    let native_client = client.native_ptr();
    // SAFETY: `native_client` is valid while `client` is borrowed. All other pointers are either
    // null-checked objects of librdkafka that live until the end of this function, or point to
    // local variables. librdkafka copies the topic names. The values that are read from the result
    // belong to `event` and are copied before `event` is dropped.
    unsafe {
        let queue = own(
            sys::rd_kafka_queue_new(native_client),
            sys::rd_kafka_queue_destroy,
        )?;
        let options = own(
            sys::rd_kafka_AdminOptions_new(
                native_client,
                sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
            ),
            sys::rd_kafka_AdminOptions_destroy,
        )?;
        sys::rd_kafka_AdminOptions_set_request_timeout(
            options.object,
            timeout_ms,
            ptr::null_mut(),
            0,
        );
        let topics = own(
            sys::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len()),
            sys::rd_kafka_TopicCollection_destroy,
        )?;
        sys::rd_kafka_DescribeTopics(native_client, topics.object, options.object, queue.object);
        let event = own(
            sys::rd_kafka_queue_poll(queue.object, timeout_ms),
            sys::rd_kafka_event_destroy,
        )?;
        let error = sys::rd_kafka_event_error(event.object);
        if error != sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Err(RDKafkaErrorCode::from(error).to_string());
        }
        let result = sys::rd_kafka_event_DescribeTopics_result(event.object);
        if result.is_null() {
            return Err("Kafka sent an unexpected response".to_owned());
        }
        let mut count = 0;
        let descriptions = sys::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        if descriptions.is_null() || count != 1 {
            return Err("Kafka sent an unexpected response".to_owned());
        }
        let description = *descriptions;
        let topic_error = sys::rd_kafka_TopicDescription_error(description);
        if !topic_error.is_null() {
            let code = sys::rd_kafka_error_code(topic_error);
            if code != sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
                return Err(format!("topic {topic}: {}", RDKafkaErrorCode::from(code)));
            }
        }
        let id = sys::rd_kafka_TopicDescription_topic_id(description);
        if id.is_null() {
            return Ok(None);
        }
        let text = sys::rd_kafka_Uuid_base64str(id);
        if text.is_null() {
            return Ok(None);
        }
        let text = CStr::from_ptr(text).to_string_lossy();
        Ok((text != ZERO_ID).then(|| TopicId(text.into_owned())))
    }
}
