//! Lookup of a connection on behalf of a caller.

use super::ApiState;
use super::error::ApiError;
use crate::config::LookupMode;
use crate::domain::{ClientId, Connection, OrgId};
use crate::telemetry::request_id;
use crate::tenant::TranslationOutcome;

impl ApiState {
    /// Finds a connection that belongs to the organization.
    ///
    /// Returns `None` if there is no such connection, or if `client_id` is not a valid client id.
    pub(super) async fn find_own(
        &self,
        org: &OrgId,
        client_id: &str,
    ) -> Result<Option<Connection>, ApiError> {
        let Ok(client_id) = ClientId::new(client_id) else {
            return Ok(None);
        };
        Ok(self.store.find_for_org(org, &client_id).await?)
    }

    /// Like [`ApiState::find_own`]. In relaxed lookup mode it also finds Satellite servers of other
    /// organizations, and logs each such access.
    pub(super) async fn find_reachable(
        &self,
        org: &OrgId,
        client_id: &str,
    ) -> Result<Option<Connection>, ApiError> {
        if self.lookup_mode == LookupMode::Strict {
            return self.find_own(org, client_id).await;
        }
        let Ok(client_id) = ClientId::new(client_id) else {
            return Ok(None);
        };
        let connection = self
            .store
            .find_for_org_or_satellite(org, &client_id)
            .await?;
        if let Some(connection) = &connection
            && connection.tenant.org_id != *org
        {
            tracing::info!(
                request_id = request_id::current(),
                client_id = client_id.as_str(),
                owner_org_id = connection.tenant.org_id.as_str(),
                caller_org_id = org.as_str(),
                "cross-organization Satellite access"
            );
        }
        Ok(connection)
    }

    /// Translates an account number to its organization. Returns `None` for an unknown account.
    pub(super) async fn org_of(&self, account: &str) -> Result<Option<OrgId>, ApiError> {
        match self.account_translator.org_of(account).await {
            TranslationOutcome::Found(org) => Ok(Some(org)),
            TranslationOutcome::NotFound => Ok(None),
            TranslationOutcome::Unavailable => Err(ApiError::unavailable(
                "The account translation service is unavailable; retry later",
            )),
        }
    }
}
