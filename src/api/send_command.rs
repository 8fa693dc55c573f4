//! What a client is told to do with its connection, as both generations do it.

use std::sync::Arc;

use axum::http::StatusCode;
use serde::{Deserialize as _, Deserializer, de};
use serde_json::Number;
use uuid::Uuid;

use super::ApiState;
use super::error::ApiError;
use super::send_message::FAILED;
use crate::delivery::SendError;
use crate::domain::Connection;
use crate::protocol::Command;
use crate::store::{ConnectionEnd, PresenceBatch, ReceivedAt};
use crate::telemetry::request_id;

impl ApiState {
    /// Sends a command that both dialects have. None if the client is not there any more.
    ///
    /// A client that is told to disconnect leaves without a word: that it is gone is ours to note. Any
    /// later sign of life brings it back.
    pub(super) async fn command(
        self: &Arc<Self>,
        connection: &Connection,
        command: &Command,
    ) -> Result<Option<Uuid>, ApiError> {
        if !matches!(command, Command::Disconnect { .. }) {
            return self.send(connection, command).await;
        }
        // Both or neither, also if the caller goes away meanwhile.
        let (parts, connection, command) = (self.clone(), connection.clone(), command.clone());
        let both = async move {
            let sent = parts.send(&connection, &command).await?;
            if sent.is_some() {
                parts.mark_disconnected(&connection).await?;
            }
            Ok(sent)
        };
        let id = request_id::current().unwrap_or_default();
        let both = tokio::spawn(request_id::scope(id, both));
        both.await
            .unwrap_or_else(|ended| Err(ApiError::panicked(&ended.to_string())))
    }

    async fn send(
        &self,
        connection: &Connection,
        command: &Command,
    ) -> Result<Option<Uuid>, ApiError> {
        match self.delivery.command(connection, command).await {
            Ok(sent) => Ok(sent),
            Err(SendError::NotConnected) => Ok(None),
            Err(error) => Err(ApiError::not_sent(FAILED, error)),
        }
    }

    async fn mark_disconnected(&self, connection: &Connection) -> Result<(), ApiError> {
        let now = self.clock.now();
        let batch = PresenceBatch {
            departures: vec![ConnectionEnd {
                client_id: connection.client_id.clone(),
                heard: ReceivedAt {
                    at: now,
                    place: None,
                },
            }],
            ..PresenceBatch::default()
        };
        let noted = self.store.record_batch(&batch, &[], now).await;
        noted.map(drop).map_err(|error| {
            tracing::warn!(request_id = request_id::current(), %error, "a client was told to leave, and is still shown as connected");
            ApiError::unavailable(
                "The client was told to leave, but the database does not answer, so that it is \
                 still shown as connected; try again",
            )
        })
    }
}

/// How long a client shall stay away, as callers say it.
pub(super) fn delay(seconds: i64) -> Result<u64, ApiError> {
    u64::try_from(seconds).map_err(|_| {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            "Delay field cannot be negative",
            "The delay is how many seconds the client stays away",
        )
    })
}

/// Reads a whole number, however it is written: `60.0` is one, too.
pub(super) fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    let Some(number) = Option::<Number>::deserialize(from)? else {
        return Ok(None);
    };
    if let Some(whole) = number.as_i64() {
        return Ok(Some(whole));
    }
    #[expect(clippy::cast_possible_truncation, reason = "it is within bounds")]
    let whole = number
        .as_f64()
        .filter(|float| float.fract() == 0.0 && float.abs() < 9.2e18)
        .map(|float| float as i64);
    let whole = whole.ok_or_else(|| de::Error::custom("not a whole number"))?;
    Ok(Some(whole))
}
