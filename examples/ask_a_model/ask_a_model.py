"""Open a model directory, and ask about a film: by a prompt, by a box, and by both."""

from pathlib import Path

from models.contract import Box, Question
from node.commands.ask import in_words
from node.outputs.asked_question import answer_to_json
from node.read import open_film, prompts
from node.read.model import open_reader

MODEL = Path("models/weights/phantom")
FILM = Path("node/commands/films/opacity.dcm")


def main() -> None:
    """Print the answers as `ask` does; as JSON they are those of `ask --json`."""
    prompt_set = prompts.load("chexpert14")
    reader = open_reader(MODEL, prompts=prompt_set, engine="onnx")
    box = Box(left=120.0, top=270.0, right=240.0, bottom=400.0)  # in pixels of the stored film
    questions = [Question(prompt="lung opacity"), Question(box=box), Question(prompt="lung opacity", box=box)]
    answers = open_film.ask(FILM, questions, reader=reader, prompts=prompt_set)
    print(in_words({"film": str(FILM), "questions": [answer_to_json(answer) for answer in answers]}))


if __name__ == "__main__":  # a process that decodes pixels imports this file again
    main()
