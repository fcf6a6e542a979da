-- Sends chest films to the ChEX Node as they arrive, and with them every other image of their study, the notes by which
-- films are rejected, and on demand what readers ask there.
--
-- A film goes out as a job of its own. Storing never waits for the node, one refused object takes no other with it,
-- and a job that failed stays visible in Orthanc (GET /jobs), where POST /jobs/<id>/resubmit runs it again.
-- SendToModality() would be shorter, but Orthanc 1.10 drops what it cannot send, with nothing but a line in its log.
--
-- What was handed to a job carries the metadata SentToNode, so that no image is sent twice; see UserMetadata in
-- orthanc.json. A failed job takes the mark back; the next chest film of the study, or silence for StableAge seconds,
-- then sends the image again.

local NODE = 'CHEX' -- the node's name in DicomModalities
local NODE_AET = GetOrthancConfiguration()['DicomModalities'][NODE][1]

-- true: presentation states and structured reports that readers save on these studies go to the node as well, which
-- answers them as questions if [questions] of its settings says so.
local QUESTIONS = false

-- Every series description of the node begins so, and has this label; those of older versions have it at the front.
local RESULT_START, RESULT_LABEL = 'AI ', 'NOT FOR DIAGNOSIS'

-- The titles of notes that reject objects (PS3.16 CID 7011); other Key Objects mark images and stay here.
local REJECTS = { ['113001'] = true, ['113037'] = true, ['113038'] = true, ['113039'] = true }

-- What names of the chest contain, however letters with accents are encoded ('RAX': THORAX, TÓRAX); the node knows more.
local CHESTS = { 'CHEST', 'RAX', 'THX', 'CXR', 'LUNG', 'TORACE', 'POITRINE', 'POUMON', 'PULM', 'BRUST', 'BORST', 'STKORG', 'BRYST',
   'KLATKA', 'HRUDN', 'MELLKAS', 'AKCI', 'GÖĞÜS', 'КЛЕТКА', 'клетка', '胸', '흉부' }

local RADIOGRAPHY = { CR = true, DX = true, RG = true }


local function isFromNode(tags, origin)
   -- A result that is routed back would make the node read itself. Results that arrive another way, from a second
   -- archive or by an import, are known by their series.
   local description = tags['SeriesDescription'] or ''
   local isResult = description:sub(1, #RESULT_START) == RESULT_START and description:find(RESULT_LABEL, 1, true) ~= nil
   return origin['RemoteAet'] == NODE_AET or isResult
end


local function isImage(tags)
   -- Dose reports, key objects and presentation states have no pixels: there is nothing to read in them.
   return tags['Rows'] ~= nil and tags['Columns'] ~= nil
end


local function isRejectionNote(tags)
   local title = (tags['ConceptNameCodeSequence'] or {})[1] or {}
   return tags['Modality'] == 'KO' and title['CodingSchemeDesignator'] == 'DCM' and REJECTS[title['CodeValue']] ~= nil
end


local function isRouted(tags)
   return isImage(tags) or isRejectionNote(tags) or (QUESTIONS and (tags['Modality'] == 'PR' or tags['Modality'] == 'SR'))
end


local function isChestFilm(tags)
   -- Many devices leave the body part empty. Such a film is sent, and the node decides; a site whose devices never fill
   -- it in should test the StudyDescription here as well, or films of hands are read as chests.
   local bodyPart = (tags['BodyPartExamined'] or ''):upper()
   local isNamed = bodyPart == ''
   for _, chest in ipairs(CHESTS) do
      isNamed = isNamed or bodyPart:find(chest, 1, true) ~= nil
   end
   return RADIOGRAPHY[tags['Modality']] ~= nil and isNamed
end


local function get(path)
   return ParseJson(RestApiGet(path))
end


local function wasSent(instance)
   for _, name in ipairs(get('/instances/' .. instance .. '/metadata')) do
      if name == 'SentToNode' then
         return true
      end
   end
   return false
end


local function originOf(instance)
   for _, name in ipairs(get('/instances/' .. instance .. '/metadata')) do
      if name == 'RemoteAET' then
         return { RemoteAet = RestApiGet('/instances/' .. instance .. '/metadata/RemoteAET') }
      end
   end
   return {} -- not received by C-STORE
end


local function send(instance)
   if not wasSent(instance) then
      RestApiPut('/instances/' .. instance .. '/metadata/SentToNode', NODE_AET)
      RestApiPost('/modalities/' .. NODE .. '/store', DumpJson({ Resources = { instance }, Synchronous = false }, true))
   end
end


local function hasChestFilm(study)
   -- One look at the series, for this is asked for every slice of a CT as well.
   for _, series in ipairs(get('/studies/' .. study .. '/series')) do
      if isChestFilm(series['MainDicomTags']) then
         return true
      end
   end
   return false
end


local function sendStudy(study)
   for _, instance in ipairs(get('/studies/' .. study .. '/instances')) do
      local tags = get('/instances/' .. instance['ID'] .. '/simplified-tags')
      if isRouted(tags) and not isFromNode(tags, originOf(instance['ID'])) then
         send(instance['ID'])
      end
   end
end


local function sendNotes(study)
   for _, series in ipairs(get('/studies/' .. study .. '/series')) do
      for _, instance in ipairs(series['MainDicomTags']['Modality'] == 'KO' and series['Instances'] or {}) do
         local tags = get('/instances/' .. instance .. '/simplified-tags')
         if isRejectionNote(tags) and not isFromNode(tags, originOf(instance)) then
            send(instance)
         end
      end
   end
end


function OnStoredInstance(instance, tags, metadata, origin)
   if not isRouted(tags) or isFromNode(tags, origin) then
      return
   end
   local study = get('/instances/' .. instance .. '/study')['ID']
   if isRejectionNote(tags) then
      send(instance) -- its film may have been removed here, and is still at the node
   elseif isChestFilm(tags) then
      sendStudy(study) -- with what arrived before its first chest film
   elseif hasChestFilm(study) then
      send(instance)
   end
end


function OnStableStudy(study, tags, metadata)
   if hasChestFilm(study) then
      sendStudy(study)
   else
      sendNotes(study) -- a note whose job failed, and whose films may have been removed here
   end
end


function OnJobFailure(jobId)
   local job = get('/jobs/' .. jobId)
   if job['Type'] == 'DicomModalityStore' and job['Content']['RemoteAet'] == NODE_AET then
      for _, instance in ipairs(job['Content']['ParentResources']) do
         RestApiDelete('/instances/' .. instance .. '/metadata/SentToNode')
      end
   end
end
