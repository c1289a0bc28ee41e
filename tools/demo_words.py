"""Names and words that the demo model's corpus draws its casts from."""

GIRLS = (
    "Anna", "Mia", "Lily", "Rosa", "Clara", "Nora", "Emma", "Ivy", "Ruth", "Ella", "Maya", "Sara", "Lucy",
    "Jane",
)  # fmt: skip
BOYS = (
    "Tom", "Ben", "Max", "Leo", "Sam", "Finn", "Oscar", "Hugo", "Noah", "Adam", "Jack", "Paul", "Peter",
    "Tim",
)  # fmt: skip
SHE_PETS = (
    "Bella", "Hazel", "Tilly", "Coco", "Olive", "Daisy", "Poppy", "Ginger",
)  # fmt: skip
HE_PETS = (
    "Rusty", "Milo", "Bruno", "Biscuit", "Pepper", "Fred", "Button", "Oliver",
)  # fmt: skip
ANIMALS = (
    "fox", "bear", "rabbit", "owl", "mouse", "hedgehog", "frog", "duck", "cat", "dog", "squirrel", "goat",
    "donkey", "crow", "turtle", "horse", "sheep", "badger", "wolf", "lion", "elephant", "monkey", "penguin",
    "deer", "goose", "pig", "cow", "hen", "dragon", "tiger", "whale", "bee", "snail", "kitten", "puppy",
)  # fmt: skip
THINGS = (
    "boat", "train", "lamp", "cloud", "star", "clock", "robot", "kite", "bell", "tree", "bridge",
    "lighthouse", "car", "ship", "house", "chair", "teapot", "book", "candle", "key", "snowman", "balloon",
    "bus", "river", "flower", "leaf", "stone", "shoe", "hat", "umbrella", "rocket", "drum", "pencil",
    "spoon", "mountain", "moon", "computer", "tractor", "violin", "window",
)  # fmt: skip
HELPERS = (
    "owl", "fox", "dog", "cat", "duck", "rabbit", "crow", "turtle", "goat", "donkey", "mouse", "squirrel",
)  # fmt: skip
COLOURS = (
    "red", "blue", "green", "yellow", "white", "brown", "silver", "golden", "black", "orange",
)  # fmt: skip
OBJECTS = (
    "ball", "kite", "scarf", "hat", "key", "basket", "cup", "drum", "book", "bell", "shoe", "ring",
    "toy boat", "umbrella", "box", "blanket", "flute", "lantern",
)  # fmt: skip
FOODS = (
    "bread and cheese", "apple cake", "warm soup", "honey cakes", "berries", "pears", "hot pancakes",
    "bread with jam", "plum pie", "nuts and raisins",
)  # fmt: skip
ADJECTIVES = (
    "brave", "kind", "curious", "quiet", "cheerful", "clever", "gentle", "shy", "busy", "patient",
)  # fmt: skip
# relative: pronoun
ELDERS = {
    "grandmother": "she",
    "grandfather": "he",
    "mother": "she",
    "father": "he",
    "aunt": "she",
    "uncle": "he",
}
# the place, being in it, living there
PLACES = (
    ("the forest", "in the forest", "at the edge of a forest"),
    ("the river", "by the river", "near a wide river"),
    ("the lake", "at the lake", "beside a quiet lake"),
    ("the sea", "by the sea", "in a village by the sea"),
    ("the hill", "on the hill", "on top of a green hill"),
    ("the market", "at the market", "close to the market"),
    ("the garden", "in the garden", "in a house with a big garden"),
    ("the farm", "on the farm", "on a small farm"),
    ("the village", "in the village", "in a small village"),
    ("the park", "in the park", "near a park"),
    ("the mountain", "on the mountain", "at the foot of a tall mountain"),
    ("the valley", "in the valley", "in a deep green valley"),
)
# plots about a hero; those in the second line also fit an opening that introduces two friends
PLOTS = (
    "lost",
    "storm",
    "rescue",
    "making",
    "journey",
    "fear",
    "sharing",
    "seed",
    "mystery",
    "party",
    "proud",
    "market",
)
PLOTS_FOR_TWO = ("storm", "sharing", "proud", "party", "lost")
