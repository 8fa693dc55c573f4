//! `GET /v2/connections`: returns a page of the organization's connections that match the filters.
//! The caller selects the page by an offset or by a cursor.

use std::ops::ControlFlow;

use axum::extract::{OriginalUri, State};
use axum::response::Response;
use domain::{Connection, OrgId};
use utoipa::IntoParams;

use super::list_filters::{FilterParams, parse_filters};
use super::{ConnectionView, INVALID_REQUEST_TITLE};
use crate::auth::OrgCaller;
use crate::error::ApiError;
use crate::large_responses::{Elements, Rejected};
use crate::pagination::{PageHead, PageParams, Paginated, last_param_value, query_params};
use crate::{ApiState, SharedState};
use store::{MAX_FILTERED_COUNT, PageRequest, PageStart};

/// OpenAPI description of the query parameter `cursor`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only documents the parameter")]
struct CursorParam {
    /// Selects the page, instead of `offset`. Use a cursor for long lists, because a large `offset`
    /// is slow. For the first page, use an empty cursor. For the next page, use the value of
    /// `meta.cursor` in the previous response. With a cursor, the response has no `meta.count`.
    cursor: Option<String>,
}

/// List connections
///
/// Returns the organization's connections that match all filters, ordered by client id.
#[utoipa::path(
    get,
    path = "/connections",
    operation_id = "v2.connections.list",
    params(PageParams, CursorParam, FilterParams),
    responses((
        status = 200,
        description = "A page of connections.",
        body = Paginated<ConnectionView>
    )),
)]
pub(super) async fn list_connections(
    State(state): State<SharedState>,
    caller: OrgCaller,
    OriginalUri(uri): OriginalUri,
) -> Result<Response, ApiError> {
    let params = query_params(&uri);
    let page = PageParams::from_query(&uri, INVALID_REQUEST_TITLE)?;
    let mut request = PageRequest::at_offset(page.offset, page.limit);
    request.filter = parse_filters(&params)?;
    if let Some(cursor) = last_param_value(&params, "cursor") {
        // PostgreSQL rejects NUL in text. Therefore the cursor is truncated at the first NUL. No
        // client id contains NUL, so the truncated cursor selects the same page.
        let client_id = cursor.split('\0').next().unwrap_or_default();
        request.start = PageStart::After(client_id.to_owned());
    }
    let ConnectionPage {
        total_count,
        elements,
        connection_count,
        next_cursor,
        is_full,
    } = read_page(&state, &caller.org_id, request.clone()).await?;
    let head = match request.start {
        PageStart::Offset(offset)
            if !request.filter.is_empty() && total_count > MAX_FILTERED_COUNT =>
        {
            let has_next = is_full || (page.limit > 0 && connection_count == page.limit);
            let next_offset = has_next.then_some(offset.saturating_add(connection_count));
            PageHead::capped_page(&uri, page, MAX_FILTERED_COUNT, next_offset)
        }
        PageStart::Offset(offset) => {
            let next_offset = is_full.then_some(offset.saturating_add(connection_count));
            PageHead::offset_page(&uri, page, total_count, next_offset)
        }
        PageStart::After(_) => PageHead::cursor_page(&uri, page.limit, next_cursor),
    };
    let head = head.to_json();
    Ok(state.large_responses.respond(head, elements, b"]}"))
}

/// The connections of a page, as JSON.
struct ConnectionPage {
    total_count: u64,
    elements: Elements,
    connection_count: u64,
    /// Cursor of the next page. `None` if no connection follows this page.
    next_cursor: Option<String>,
    /// Whether the page ended at the size limit of a response, and more connections follow.
    is_full: bool,
}

/// Reads a page. A page that is larger than a small response waits for a permit.
async fn read_page(
    state: &ApiState,
    org: &OrgId,
    mut request: PageRequest,
) -> Result<ConnectionPage, ApiError> {
    let limit = request.limit;
    if limit > 0 && matches!(request.start, PageStart::After(_)) {
        // If this additional connection exists, there is a next page.
        request.limit = limit + 1;
    }
    let mut permit = None;
    loop {
        let mut page = ConnectionPage {
            total_count: 0,
            elements: state.large_responses.elements(permit.take()),
            connection_count: 0,
            next_cursor: None,
            is_full: false,
        };
        let mut last_client_id = None;
        let mut rejected = None;
        let mut visit = |connection: Connection| {
            let client_id = connection.client_id.to_string();
            let pushed = if page.connection_count == limit {
                Err(None)
            } else {
                let pushed = page.elements.push(&ConnectionView::from(connection));
                pushed.map_err(Some)
            };
            match pushed {
                Ok(()) => {
                    page.connection_count += 1;
                    last_client_id = Some(client_id);
                    ControlFlow::Continue(())
                }
                Err(reason) => {
                    rejected = reason;
                    page.next_cursor = last_client_id.take();
                    ControlFlow::Break(())
                }
            }
        };
        let visited = state
            .connections
            .visit_connections_for_org(org, &request, &mut visit);
        page.total_count = visited.await?;
        if rejected == Some(Rejected::PermitNeeded) {
            drop(page);
            permit = state.large_responses.permit().await;
            continue;
        }
        page.is_full = rejected == Some(Rejected::Full);
        return Ok(page);
    }
}
