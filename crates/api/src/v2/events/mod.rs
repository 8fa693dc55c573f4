//! `GET /v2/events`: the events of the organization, as a stream that stays open
//! (`text/event-stream`).
//!
//! `hub` reads new events once for all streams. `stream` is one stream. `rendered` contains the format
//! of the stream, and `filter` the query parameters. `asyncapi` describes the events.

pub(crate) mod asyncapi;
mod filter;
mod hub;
mod rendered;
mod stream;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{OriginalUri, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use utoipa::IntoParams;

use crate::SharedState;
use crate::auth::OrgCaller;
use crate::error::ApiError;
use crate::middleware::ConnectionStreams;
use crate::pagination::query_params;
use filter::parse_params;
use hub::TooManyStreams;
use stream::{EventStream, Start};

pub(crate) use hub::EventHub;
pub(crate) use rendered::ResetReason;

const LAST_EVENT_ID_HEADER: &str = "last-event-id";
/// Value of the header `Retry-After` if there are too many streams.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// OpenAPI description of the query parameters.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only documents the parameters")]
struct EventParams {
    /// Sends only events of these types, for example `connection.online`. Each filter can occur several
    /// times, and can contain several values separated by commas. An event must match one value of each
    /// filter.
    #[param(rename = "type", max_items = 64)]
    event_type: Option<Vec<String>>,
    /// Sends only events of these clients.
    #[param(max_items = 64)]
    client_id: Option<Vec<String>>,
    /// Sends only events of clients that have one of these dispatchers. `-` and `_` are equal. If the
    /// dispatchers of a client change, the event matches by the old or the new dispatchers.
    #[param(max_items = 64)]
    dispatcher: Option<Vec<String>>,
    /// Starts after the event with this id. The header `Last-Event-ID` takes precedence. Without an id,
    /// the stream starts after the newest event.
    last_event_id: Option<String>,
}

/// Stream events
///
/// Sends the events of the organization until the caller closes the connection, in the format of
/// server-sent events. `id` increases with each event, and the events of each client are in their
/// order. `asyncapi.json` describes the types of events.
///
/// The stream starts with a line `id` without an event. A caller that lists the connections after it
/// has received this line misses no change. When no event occurs, the stream sends its latest id every
/// 15 seconds. To resume after a lost connection, send the latest id as `Last-Event-ID`. A caller can
/// receive an event twice only if it resumes from an older id.
///
/// The event `reset` means that events are missing: the id to resume from is unknown or too old, or the
/// caller reads too slowly. The stream continues after the id of the event `reset`. List the connections
/// again.
#[utoipa::path(
    get,
    path = "/events",
    operation_id = "v2.events.stream",
    params(EventParams, ("Last-Event-ID" = Option<String>, Header,
        description = "Starts after the event with this id.")),
    responses(
        (status = 200, description = "The stream of events.", content_type = "text/event-stream",
            body = String),
        (status = 404, description = "Events are disabled.", body = ApiError),
        (status = 429, description = "The rate limit is exceeded, authentication failed too often, or \
            the key has too many open streams for the organization.", body = ApiError),
    ),
)]
pub(super) async fn stream_events(
    State(state): State<SharedState>,
    caller: OrgCaller,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    connection: Option<Extension<ConnectionStreams>>,
) -> Result<Response, ApiError> {
    let (filter, id_param) = parse_params(&query_params(&uri))?;
    let hub = state.event_hub.as_ref().ok_or_else(events_disabled)?;
    let id_header = headers.get(LAST_EVENT_ID_HEADER);
    let start = match (id_header, id_param) {
        (Some(id), _) if !id.is_empty() => {
            Start::After(id.to_str().ok().and_then(|id| id.parse().ok()))
        }
        (_, Some(id)) => Start::After(id.parse().ok()),
        _ => Start::Newest,
    };
    let permit = hub
        .add_stream(&caller.audit_name, &caller.org_id)
        .map_err(too_many_streams)?;
    let open_stream = connection
        .map(|Extension(it)| it)
        .unwrap_or_default()
        .open();
    let org = caller.org_id;
    let stream = EventStream::open(hub.clone(), permit, open_stream, org, filter, start).await?;
    let parts = futures::stream::unfold(stream, |mut stream| async move {
        let part = stream.next().await?;
        Some((Ok::<_, Infallible>(part), stream))
    });
    let response_headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    let mut response = (response_headers, Body::from_stream(parts)).into_response();
    // Proxies that know this header do not collect the events in a buffer.
    let no_buffering = HeaderValue::from_static("no");
    response
        .headers_mut()
        .insert("x-accel-buffering", no_buffering);
    Ok(response)
}

fn events_disabled() -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        "Events are disabled",
        "This service records no events; its operator can enable them with the setting events.enabled",
    )
}

fn too_many_streams(problem: TooManyStreams) -> ApiError {
    match problem {
        TooManyStreams::OfOwner => ApiError::too_many_requests(
            RETRY_AFTER,
            "Too many open event streams of this key for this organization; close a stream, or retry \
             after the number of seconds in the Retry-After header",
        ),
        TooManyStreams::OfProcess => {
            ApiError::unavailable("This process has too many open event streams; retry later")
        }
    }
}
