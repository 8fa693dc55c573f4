//! `POST /v2/connections/status`: returns the connection status of many clients.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ConnectionView, invalid_request_error};
use crate::SharedState;
use crate::auth::OrgCaller;
use crate::error::ApiError;
use crate::json;
use crate::large_responses::{Elements, PartSender, Rejected, ResponseAborted};
use crate::request_body::RequestBody;
use domain::{ClientId, Connection, OrgId};

/// Maximum number of client ids in one request.
const MAX_CLIENT_IDS: usize = 1000;
/// Maximum size of the statuses that are read at once.
const MAX_CHUNK_BYTES: usize = 2 * 1024 * 1024;

#[derive(Debug, Deserialize, ToSchema)]
struct BatchStatusRequest {
    /// Client ids, in any order. Duplicates are allowed.
    #[schema(
        value_type = Vec<String>,
        required = true,
        max_items = 1000,
        example = json!(["my-machine"])
    )]
    client_ids: Option<Vec<String>>,
}

/// OpenAPI description of the response.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only documents the response")]
pub(super) struct BatchStatusResponse {
    /// One entry per client id, in the order of the request.
    data: Vec<BatchStatusItem>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "status", rename_all = "lowercase")]
enum BatchStatusItem {
    Connected(Box<ConnectionView>),
    Disconnected { client_id: String },
}

/// Get the connection status of many clients
#[utoipa::path(
    post,
    path = "/connections/status",
    operation_id = "v2.connections.status",
    request_body = BatchStatusRequest,
    responses((
        status = 200,
        description = "One status per client id, in the order of the request.",
        body = BatchStatusResponse
    )),
)]
pub(super) async fn status(
    State(state): State<SharedState>,
    caller: OrgCaller,
    body: RequestBody,
) -> Result<Response, ApiError> {
    let request: BatchStatusRequest = json::parse_body(&body)?;
    let client_ids = request.client_ids.ok_or_else(json::missing_fields_error)?;
    if client_ids.len() > MAX_CLIENT_IDS {
        return Err(invalid_request_error(format!(
            "client_ids has {} entries; at most {MAX_CLIENT_IDS} are allowed",
            client_ids.len()
        )));
    }
    let mut reader = StatusReader {
        state: state.clone(),
        org: caller.org_id,
        chunk_length: client_ids.len(),
        client_ids,
        position: 0,
    };
    let head = br#"{"data":["#.to_vec();
    let elements = reader.read_elements().await?;
    if reader.is_at_end() {
        return Ok(state.large_responses.respond(head, elements, b"]}"));
    }
    let send_rest = |sender| reader.send_rest(sender);
    let responses = &state.large_responses;
    Ok(responses.respond_in_parts(head, elements, send_rest))
}

/// Reads the status of many clients in chunks, so that only one chunk is in memory.
struct StatusReader {
    state: SharedState,
    org: OrgId,
    client_ids: Vec<String>,
    /// Number of clients whose status is part of the response.
    position: usize,
    /// Number of clients in a chunk.
    chunk_length: usize,
}

impl StatusReader {
    fn is_at_end(&self) -> bool {
        self.position == self.client_ids.len()
    }

    /// Reads statuses up to the size limit of a response. A response that is larger than a small
    /// response waits for a permit.
    async fn read_elements(&mut self) -> Result<Elements, ApiError> {
        let mut elements = self.state.large_responses.elements(None);
        while !self.is_at_end() {
            for status in self.read_chunk().await? {
                match elements.push_json(status.as_bytes()) {
                    Ok(()) => self.position += 1,
                    Err(Rejected::Full) => return Ok(elements),
                    Err(Rejected::PermitNeeded) => {
                        drop(elements);
                        let permit = self.state.large_responses.permit().await;
                        elements = self.state.large_responses.elements(permit);
                        self.position = 0;
                        break;
                    }
                }
            }
        }
        Ok(elements)
    }

    /// Sends the statuses that are not yet part of the response, and the end of the response.
    async fn send_rest(mut self, sender: PartSender) -> Result<(), ResponseAborted> {
        while !self.is_at_end() {
            // The caller has received a part of the response, so an error can only close the
            // connection. The conversion to `ApiError` logs the error.
            let chunk = self.read_chunk().await.map_err(|_| ResponseAborted)?;
            for status in chunk {
                sender.send(format!(",{status}")).await?;
                self.position += 1;
            }
        }
        sender.send("]}").await?;
        sender.finish().await
    }

    /// Reads the statuses of the next clients, as JSON.
    async fn read_chunk(&mut self) -> Result<Vec<Arc<str>>, ApiError> {
        loop {
            let end = self.client_ids.len().min(self.position + self.chunk_length);
            let client_ids = &self.client_ids[self.position..end];
            match self.find_connected(client_ids).await? {
                Some(connected) => return Ok(statuses(client_ids, &connected)),
                None => self.chunk_length = (self.chunk_length / 4).max(1),
            }
        }
    }

    /// Finds the connected clients among `client_ids`, and returns their statuses by client id.
    /// Returns `None` if the statuses need too much memory.
    async fn find_connected(
        &self,
        client_ids: &[String],
    ) -> Result<Option<HashMap<String, Arc<str>>>, ApiError> {
        // The lookup uses only the valid ids. Invalid ids are reported as disconnected, because no
        // client can have an invalid id.
        let valid_ids: Vec<ClientId> = client_ids
            .iter()
            .filter_map(|id| ClientId::new(id).ok())
            .collect();
        let mut connected = HashMap::new();
        let mut byte_count = 0;
        let mut is_too_large = false;
        let mut visit = |connection: Connection| {
            let client_id = connection.client_id.to_string();
            let status = to_json(&BatchStatusItem::Connected(Box::new(connection.into())));
            byte_count += status.len();
            // One status is always accepted, so that every chunk makes progress.
            if byte_count > MAX_CHUNK_BYTES && !connected.is_empty() {
                is_too_large = true;
                return ControlFlow::Break(());
            }
            connected.insert(client_id, status);
            ControlFlow::Continue(())
        };
        let connections = &self.state.connections;
        connections
            .visit_connections_of_clients(&self.org, &valid_ids, &mut visit)
            .await?;
        Ok((!is_too_large).then_some(connected))
    }
}

fn statuses(client_ids: &[String], connected: &HashMap<String, Arc<str>>) -> Vec<Arc<str>> {
    let disconnected = |client_id: &String| {
        to_json(&BatchStatusItem::Disconnected {
            client_id: client_id.clone(),
        })
    };
    let status = |client_id| connected.get(client_id).cloned();
    let status = |client_id| status(client_id).unwrap_or_else(|| disconnected(client_id));
    client_ids.iter().map(status).collect()
}

fn to_json(status: &BatchStatusItem) -> Arc<str> {
    // The fields are strings and JSON values, which can always be serialized.
    serde_json::to_string(status).unwrap_or_default().into()
}
