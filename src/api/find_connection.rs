//! Finding a connection for a caller.

use super::ApiState;
use super::error::ApiError;
use crate::config::LookupMode;
use crate::domain::{ClientId, Connection, OrgId};
use crate::telemetry::request_id;
use crate::tenant::TranslationOutcome;

impl ApiState {
    /// An organisation's own connection. A name that no client can have is nobody's.
    pub(super) async fn own(
        &self,
        org: &OrgId,
        name: &str,
    ) -> Result<Option<Connection>, ApiError> {
        let Ok(client) = ClientId::new(name) else {
            return Ok(None);
        };
        Ok(self.store.find_for_org(org, &client).await?)
    }

    /// As [`ApiState::own`]; where lookup is relaxed, also another organisation's Satellite server.
    pub(super) async fn reachable(
        &self,
        org: &OrgId,
        name: &str,
    ) -> Result<Option<Connection>, ApiError> {
        if self.settings.lookup == LookupMode::Strict {
            return self.own(org, name).await;
        }
        let Ok(client) = ClientId::new(name) else {
            return Ok(None);
        };
        let found = self.store.find_for_org_or_satellite(org, &client).await?;
        if let Some(found) = &found
            && found.tenant.org_id != *org
        {
            tracing::info!(
                request_id = request_id::current(),
                client_id = client.as_str(),
                owner = found.tenant.org_id.as_str(),
                caller = org.as_str(),
                "a Satellite server is reached by another organisation"
            );
        }
        Ok(found)
    }

    /// The organisation with this account number; none if there is no such tenant.
    pub(super) async fn org_of(&self, account: &str) -> Result<Option<OrgId>, ApiError> {
        match self.translator.org_of(account).await {
            TranslationOutcome::Found(org) => Ok(Some(org)),
            TranslationOutcome::NotFound => Ok(None),
            TranslationOutcome::Unavailable => Err(ApiError::unavailable(
                "The service that knows accounts and organisations does not answer; try again",
            )),
        }
    }
}
