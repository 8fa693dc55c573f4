//! `GET /v2/connections`: returns a page of the organization's connections that match the filters.
//! The caller selects the page by an offset or by a cursor.

use axum::extract::{OriginalUri, State};
use axum::http::Uri;
use utoipa::IntoParams;

use super::list_filters::{FilterParams, parse_filters};
use super::{ConnectionView, INVALID_REQUEST_TITLE};
use crate::SharedState;
use crate::auth::OrgCaller;
use crate::error::ApiError;
use crate::json::Json;
use crate::pagination::{PageParams, Paginated, last_param_value, query_params};
use store::{PageRequest, PageStart};

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
) -> Result<Json<Paginated<ConnectionView>>, ApiError> {
    let params = query_params(&uri);
    let page = PageParams::from_query(&uri, INVALID_REQUEST_TITLE)?;
    let mut request = PageRequest::at_offset(page.offset, page.limit);
    request.filter = parse_filters(&params)?;
    if let Some(cursor) = last_param_value(&params, "cursor") {
        // PostgreSQL rejects NUL in text. Therefore the cursor is truncated at the first NUL. No
        // client id contains NUL, so the truncated cursor selects the same page.
        let client_id = cursor.split('\0').next().unwrap_or_default();
        request.start = PageStart::After(client_id.to_owned());
        return list_after_cursor(&state, &caller, request, &uri).await;
    }
    let connection_page = state
        .connections
        .list_connections_for_org(&caller.org_id, &request)
        .await?;
    let count = connection_page.total_count;
    let connections = connection_page.connections.into_iter();
    let data = connections.map(Into::into).collect();
    Ok(Json(Paginated::offset_page(&uri, page, count, data)))
}

/// Returns the page after the cursor.
///
/// Reads one connection more than the page contains. If this connection exists, there is a next
/// page.
async fn list_after_cursor(
    state: &SharedState,
    caller: &OrgCaller,
    mut request: PageRequest,
    uri: &Uri,
) -> Result<Json<Paginated<ConnectionView>>, ApiError> {
    let limit = request.limit;
    request.limit = if limit == 0 { 0 } else { limit + 1 };
    let connection_page = state
        .connections
        .list_connections_for_org(&caller.org_id, &request)
        .await?;
    let mut connections = connection_page.connections;
    let has_next_page = connections.len() as u64 > limit;
    connections.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let last_connection = connections.last().filter(|_| has_next_page);
    let next_cursor = last_connection.map(|connection| connection.client_id.to_string());
    let data = connections.into_iter().map(Into::into).collect();
    Ok(Json(Paginated::cursor_page(uri, limit, next_cursor, data)))
}
