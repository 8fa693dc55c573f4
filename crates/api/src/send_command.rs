//! Sends reconnect and disconnect commands to clients, for v1 and v2.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use serde::{Deserialize as _, Deserializer, de};
use serde_json::Number;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::ApiState;
use super::error::ApiError;
use super::send_message::SEND_FAILED_TITLE;
use delivery::SendError;
use domain::Connection;
use protocol::Command;
use service::request_id;

impl ApiState {
    /// Sends a reconnect or disconnect command, and returns the message id of the command. Returns
    /// `None` if the client is no longer connected.
    ///
    /// After a disconnect command, the client publishes no offline message. Therefore this method
    /// marks the client as disconnected. If the client sends a heartbeat later, the recorder marks
    /// the client as connected again.
    pub(super) async fn send_command(
        self: &Arc<Self>,
        connection: &Connection,
        command: &Command,
        ack_timeout: Duration,
    ) -> Result<Option<Uuid>, ApiError> {
        if !matches!(command, Command::Disconnect { .. }) {
            return self.publish_command(connection, command, ack_timeout).await;
        }
        // A separate task sends the disconnect command and records the disconnect. Therefore the
        // disconnect is recorded even if the caller closes the HTTP connection in the meantime.
        let (state, connection, command) = (self.clone(), connection.clone(), command.clone());
        let send_and_record = async move {
            let message_id = state
                .publish_command(&connection, &command, ack_timeout)
                .await?;
            if message_id.is_some() {
                state.mark_disconnected(&connection).await?;
            }
            Ok(message_id)
        };
        let request_id = request_id::current().unwrap_or_default();
        let send_and_record = request_id::scope(request_id, send_and_record);
        let (result_sender, result) = oneshot::channel();
        self.tasks.spawn_item("disconnect_command", async move {
            // `send` fails if the caller closed the HTTP connection. That is not an error.
            let _ = result_sender.send(send_and_record.await);
        });
        // The sender is dropped without a result if the task panics, or if shutdown drops the task.
        result
            .await
            .unwrap_or_else(|_| Err(ApiError::from_panic(&"disconnect command aborted")))
    }

    async fn publish_command(
        &self,
        connection: &Connection,
        command: &Command,
        ack_timeout: Duration,
    ) -> Result<Option<Uuid>, ApiError> {
        let sent = self.delivery.send_command(connection, command, ack_timeout);
        match sent.await {
            Ok(message_id) => Ok(message_id),
            Err(SendError::NotConnected) => Ok(None),
            Err(error) => Err(ApiError::send_failed(SEND_FAILED_TITLE, error)),
        }
    }

    /// Records in the database that the connection ended. Has no effect if the client has
    /// reconnected since the request read the connection.
    async fn mark_disconnected(&self, connection: &Connection) -> Result<(), ApiError> {
        let marked = self.connections.mark_disconnected(connection).await;
        marked.map(drop).map_err(|error| {
            tracing::warn!(
                request_id = request_id::current(), %error,
                client_id = connection.client_id.as_str(),
                "disconnect sent but not recorded"
            );
            ApiError::unavailable(
                "The disconnect command was sent, but the client is still listed as connected \
                 because the database is unavailable; retry later",
            )
        })
    }
}

/// Checks the `delay` field of a reconnect request: the delay must not be negative. Returns the
/// delay in seconds.
pub(super) fn check_delay(seconds: i64) -> Result<u64, ApiError> {
    u64::try_from(seconds).map_err(|_| {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            "Delay field cannot be negative",
            "delay must be 0 or more: the number of seconds before the client reconnects",
        )
    })
}

/// Deserializes an optional integer field. Also accepts an integer in floating-point notation, such
/// as `60.0`.
pub(super) fn deserialize_integer<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<i64>, D::Error> {
    let Some(number) = Option::<Number>::deserialize(deserializer)? else {
        return Ok(None);
    };
    if let Some(integer) = number.as_i64() {
        return Ok(Some(integer));
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "filtered to the range of i64"
    )]
    let integer = number
        .as_f64()
        .filter(|float| float.fract() == 0.0 && float.abs() < 9.2e18)
        .map(|float| float as i64);
    let integer = integer.ok_or_else(|| de::Error::custom("not an integer"))?;
    Ok(Some(integer))
}
