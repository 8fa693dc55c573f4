//! `GET /v2/connections`: lists the organization's connections, with filters, in pages by offset or
//! by cursor.

use axum::extract::{OriginalUri, State};
use axum::http::Uri;
use utoipa::IntoParams;

use super::list_filters::{FilterParams, parse_filters};
use super::{ConnectionView, INVALID_REQUEST_TITLE};
use crate::api::SharedState;
use crate::api::auth::OrgCaller;
use crate::api::error::ApiError;
use crate::api::json::Json;
use crate::api::pagination::{PageParams, Paginated, last_value, query_params};
use crate::store::{PageRequest, PageStart};

/// OpenAPI description of the query parameter `cursor`.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only documents the parameter")]
struct CursorParam {
    /// Position of the page. Replaces `offset`, and has the same cost for every page. Use an empty
    /// cursor for the first page, then `meta.cursor` of the previous page. The response has no
    /// `meta.count`.
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
pub(super) async fn list(
    State(state): State<SharedState>,
    caller: OrgCaller,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<Paginated<ConnectionView>>, ApiError> {
    let params = query_params(&uri);
    let page = PageParams::from_query(&uri, INVALID_REQUEST_TITLE)?;
    let mut request = PageRequest::at_offset(page.offset, page.limit);
    request.filter = parse_filters(&params)?;
    if let Some(cursor) = last_value(&params, "cursor") {
        // PostgreSQL rejects NUL in text. No client id contains NUL, so cutting the cursor at the
        // first NUL does not change which clients come after it.
        let client_id = cursor.split('\0').next().unwrap_or_default();
        request.start = PageStart::After(client_id.to_owned());
        return list_after_cursor(&state, &caller, request, &uri).await;
    }
    let list = state.store.list_for_org(&caller.org, &request).await?;
    let data = list.connections.into_iter().map(Into::into).collect();
    Ok(Json(Paginated::by_offset(&uri, page, list.count, data)))
}

/// Returns the page after the cursor. Reads one extra connection, which exists only if there is a
/// next page.
async fn list_after_cursor(
    state: &SharedState,
    caller: &OrgCaller,
    mut request: PageRequest,
    uri: &Uri,
) -> Result<Json<Paginated<ConnectionView>>, ApiError> {
    let limit = request.limit;
    request.limit = if limit == 0 { 0 } else { limit + 1 };
    let list = state.store.list_for_org(&caller.org, &request).await?;
    let mut connections = list.connections;
    let has_next_page = connections.len() as u64 > limit;
    connections.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let cursor_row = connections.last().filter(|_| has_next_page);
    let next_cursor = cursor_row.map(|connection| connection.client_id.to_string());
    let data = connections.into_iter().map(Into::into).collect();
    Ok(Json(Paginated::by_cursor(uri, limit, next_cursor, data)))
}
